"""Small updates, compiled and run once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hilore_planner.backend import hilore
from hilore_planner.peak import measured_peak_bytes
from hilore_planner.plan import PlacementPlan
from hilore_planner.region import surroundings

EXACT_ROUNDING = {"emulate_precision_casts": True}
"""Inductor setting under which rounding does not depend on what is saved."""


@dataclass(frozen=True, slots=True)
class Update:
    """A model, its inputs, and a compiled function of both."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    compiled: Callable[..., torch.Tensor]

    def step(self, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Loss and gradients of one update."""
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        loss = self.compiled(*self.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return loss.detach(), gradients

    def kept_step(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One update, with gradients that later updates leave alone."""
        loss, gradients = self.step()
        return loss, {name: gradient.clone() for name, gradient in gradients.items()}

    def drop(self) -> None:
        """One update of which nothing is kept."""
        self.step()
        self.model.zero_grad(set_to_none=True)

    def measured_peak_bytes(self) -> int:
        """Measured peak of one update, with the memory that is held all the time."""
        self.drop()
        held = surroundings([*self.model.parameters(), *self.model.buffers(), *self.inputs])
        return held.base_bytes + measured_peak_bytes(self.drop, "cpu").added_bytes


def compiled(
    model: nn.Module,
    *inputs: torch.Tensor,
    backend: Any = hilore,
    dynamic: bool | None = False,
    **options: Any,
) -> Update:
    """An update whose compilation starts anew; without options for an unplanned one, see ``unplanned``."""
    torch._dynamo.reset()
    keywords: dict[str, Any] = {"options": options} if options else {}
    return Update(model, inputs, torch.compile(model, backend=backend, dynamic=dynamic, **keywords))


def unplanned(model: nn.Module, *inputs: torch.Tensor, **settings: Any) -> Update:
    """The same update by Inductor alone."""
    return compiled(model, *inputs, backend="inductor", **settings)


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned update: what it computed, under which plan."""

    update: Update
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    plan: PlacementPlan

    @property
    def actions(self) -> set[str]:
        return set(self.plan.solution.placement.values())


def planned(
    folder: Path, model: nn.Module, *inputs: torch.Tensor, seed: int = 0, **options: Any
) -> Planned:
    """Compile, run once, and read the plan that was written."""
    path = folder / "plan.json"
    path.unlink(missing_ok=True)
    update = compiled(model, *inputs, plan=path, **options)
    loss, gradients = update.step(seed)
    copies = {name: gradient.clone() for name, gradient in gradients.items()}
    return Planned(update, loss, copies, PlacementPlan.load(path))


def span(run: Planned) -> tuple[int, int]:
    """Bytes held whatever is planned, and the predicted peak."""
    update = run.update
    held = surroundings([*update.model.parameters(), *update.model.buffers(), *update.inputs])
    return held.base_bytes, run.plan.predicted_peak_bytes


def distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Relative error of the whole gradient."""
    assert found.keys() == expected.keys()
    assert found
    wrong = sum(float((found[n].double() - expected[n].double()).square().sum()) for n in expected)
    whole = sum(float(expected[n].double().square().sum()) for n in expected)
    return float((wrong / whole) ** 0.5)


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether two gradients are equal bit for bit."""
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)
