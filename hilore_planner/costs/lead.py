"""What stands between the load and a call that is timed: it leaves the cache as an update would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.costs.load import Copies
from hilore_planner.costs.sample import Step


@dataclass(frozen=True, slots=True)
class Lead:
    """What is run before a call.

    Attributes:
        moved_bytes: of the input that is written; 0: none is, a copy that fills the cache is all.
        before: not timed.
        run: timed with the call: while it runs, the host starts the call.
    """

    moved_bytes: int
    before: Step
    run: Step


class Leads:
    """Makes leads for the inputs of calls."""

    def __init__(self, copies: Copies, cached_bytes: int) -> None:
        """With copies that more than fill a cache, of which so many bytes can be expected to stay."""
        self.whole = Lead(0, _nothing, copies.whole)
        self._copies = copies
        self._cached_bytes = cached_bytes

    def of(self, inputs: Sequence[Tensor]) -> Lead:
        """Its largest input was made just before the call, if the cache can hold it; all else, some time ago.

        What is of one byte a value was kept in forward, not made just before.
        """
        spans = [_span(tensor) for tensor in inputs]
        largest = max(spans, key=lambda span: span.nbytes, default=None)
        if (
            largest is None
            or not 0 < largest.nbytes <= self._cached_bytes
            or not _is_value(largest)
        ):
            return self.whole
        made = largest

        def write() -> None:
            made.mul_(1)

        return Lead(made.nbytes, self._copies.whole, write)


def _span(tensor: Tensor) -> Tensor:
    """The stretch of memory that a tensor's elements lie in, flat."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.as_strided(tensor, (last + 1 if tensor.numel() else 0,), (1,))


def _is_value(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 1


def _nothing() -> None: ...
