"""``hilore.verify``: gradients of a planned update against exact ones, module by module."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hilore_planner.backend import hilore
from hilore_planner.errors import RegionError
from hilore_planner.passes.attribution import input_path
from hilore_planner.plan import PlacementPlan

Options = Mapping[str, object]
Gradients = dict[str, Tensor]

_OF_THE_PLAN = ("plan", "memory_cap", "reserved", "gradient_error", "exposure")
"""Options that an update without compression and without a cap is compiled without."""


@dataclass(frozen=True, slots=True)
class GradientMatch:
    """How near planned gradients are to exact ones.

    Attributes:
        module: whose parameters' gradients; empty for all together.
        relative_error: norm of the difference over the norm of the exact gradient.
        cosine: of the angle between the two.
        share: of the whole squared difference.
    """

    module: str
    relative_error: float
    cosine: float
    share: float


@dataclass(frozen=True, slots=True)
class Verification:
    """What one update under a plan computed, against the same update without compression.

    Attributes:
        total: all gradients together.
        modules: module by module, the largest share of the difference first.
        loss_difference: of the two losses; compression touches no forward, so it is rounding.
        plan: with the error just measured.
    """

    total: GradientMatch
    modules: tuple[GradientMatch, ...]
    loss_difference: float
    plan: PlacementPlan

    @property
    def predicted_gradient_error(self) -> float:
        """What the plan says of ``total.relative_error``."""
        return self.plan.predicted_gradient_error


def verify(
    update: Callable[..., Any], batch: Sequence[Any], plan: str | Path | Options
) -> Verification:
    """Run one update under a plan and without compression, and compare the gradients.

    Args:
        update: not compiled; returns a scalar loss, alone or first of several outputs. Existing gradients are kept.
        batch: the arguments of one call.
        plan: a plan file, or the options the update is compiled with. If these name a plan file, or a file is given,
            the measured error is written into it.

    Raises:
        RegionError: the update compiles to no planned region, or to more than one.
        HiloreError: whatever compiling under the plan raises.
    """
    options = dict(plan) if isinstance(plan, Mapping) else options_of(Path(plan))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(str(options.get("plan") or Path(folder) / "plan.json"))
        # The planned update goes first: what it may hold is counted from what is held now.
        planned = PlannedUpdate(update, {**options, "plan": path}).run(batch)
        exact = {name: value for name, value in options.items() if name not in _OF_THE_PLAN}
        reference = PlannedUpdate(update, exact).run(batch)
        found = PlacementPlan.load(path)
        total, modules = compare(planned.gradients, reference.gradients)
        figures = replace(found.measured, gradient_error=total.relative_error)
        checked = replace(found, measured=figures)
        checked.save(path)
    return Verification(total, modules, float(planned.loss - reference.loss), checked)


def options_of(path: Path) -> dict[str, object]:
    """Options under which a plan file is used as it is.

    Raises:
        PlanFileError: the file cannot be read.
    """
    plan = PlacementPlan.load(path)
    offered = (form.codec for unit in plan.problem.units for form in unit.codecs)
    options: dict[str, object] = {
        "plan": str(path),
        "memory_cap": plan.problem.memory_cap_bytes,
        "reserved": 0,
        "gradient_error": plan.problem.gradient_error,
    }
    if codecs := list(dict.fromkeys(offered)):
        options["codecs"] = codecs
    return options


@dataclass(frozen=True, slots=True)
class Outcome:
    """Loss and gradients of one update, by path of the parameter."""

    loss: Tensor
    gradients: Gradients


class PlannedUpdate:
    """An update compiled under options, which knows the parameters its gradients belong to."""

    def __init__(self, update: Callable[..., Any], options: Options) -> None:
        self._options = options
        self._parameters: dict[str, Tensor] = {}
        self._compiled = torch.compile(update, backend=self._backend, dynamic=False)

    def run(self, batch: Sequence[Any]) -> Outcome:
        """Run one update; gradients that parameters have already are left alone.

        Raises:
            RegionError: the update compiles to no region with a gradient, or to more than one.
        """
        output = self._compiled(*batch)
        if not self._parameters:
            raise RegionError("nothing in the update has a gradient; accepted: one region that has")
        return self.outcome(output)

    def outcome(self, output: Any) -> Outcome:
        """Loss and gradients of what the update returned, which may have been run in another way."""
        return outcome_of(output, self._parameters)

    def _backend(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        leaves = dict(_leaves(gm, inputs))
        if leaves and self._parameters:
            return _refuse
        self._parameters.update(leaves)
        return hilore(gm, inputs, options=self._options)


def outcome_of(output: Any, parameters: Mapping[str, Tensor]) -> Outcome:
    """Take the gradients of an update's loss; those that parameters have already are left alone."""
    loss = output[0] if isinstance(output, (tuple, list)) else output
    before = {name: parameter.grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.grad = None
        torch.autograd.backward(loss)
        found = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    finally:
        for name, parameter in parameters.items():
            parameter.grad = before[name]
    return Outcome(loss.detach(), found)


def _refuse(*_: Any) -> Any:
    raise RegionError(
        "the update compiles to more than one region with a gradient; accepted: one, without graph breaks"
    )


def _leaves(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Inputs of a Dynamo graph that gradients are kept of, by path."""
    nodes = gm.graph.find_nodes(op="placeholder")
    for node, value in zip(nodes, inputs, strict=True):
        if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            yield input_path(node), value


def compare(found: Gradients, exact: Gradients) -> tuple[GradientMatch, tuple[GradientMatch, ...]]:
    """How near gradients are: all together, and module by module, the largest share of the difference first."""
    sums: dict[str, Tensor] = {}
    for name, gradient in exact.items():
        module = name.rpartition(".")[0]
        sums[module] = sums.get(module, 0) + _products(found[name], gradient)
    rows = {module: row.tolist() for module, row in sums.items()}
    whole = [sum(row[i] for row in rows.values()) for i in range(4)]
    modules = [_match(module, row, whole[0]) for module, row in rows.items()]
    modules.sort(key=lambda match: -match.share)
    return _match("", whole, whole[0]), tuple(modules)


def _products(found: Tensor, exact: Tensor) -> Tensor:
    """Squared difference, squared norms and inner product: (4,) in fp64, still on the device."""
    a, b = found.float().flatten(), exact.float().flatten()
    return torch.stack([(a - b).square().sum(), a.square().sum(), b.square().sum(), a @ b]).double()


def _match(module: str, products: Sequence[float], whole: float) -> GradientMatch:
    difference, found, exact, inner = products
    return GradientMatch(
        module=module,
        relative_error=math.sqrt(difference / exact) if exact else math.inf if difference else 0.0,
        cosine=inner / math.sqrt(found * exact) if found and exact else float(found == exact),
        share=difference / whole if whole else 0.0,
    )
