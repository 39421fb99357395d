"""Work that is ready at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ready:
    """What a function does, without anything to wait for."""

    function: Callable[[list[Tensor]], object] = list

    def wait(self) -> None:
        """Nothing."""

    def __call__(self, given: list[Tensor]) -> object:
        return self.function(given)
