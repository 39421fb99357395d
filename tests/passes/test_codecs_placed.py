"""Codecs in whole graphs: which units get which, exact plans with bits, sequences left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_for, rounding_for
from hilore_planner.passes.codecs.base import GROUP
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3
from hilore_planner.solvers import replay, solve
from tests.passes.joint import Traced, cut, trace_update
from tests.passes.placements import place, prefer, problem_of

pytestmark = pytest.mark.compat


class Masked(nn.Module):
    """Three times linear and leaky; [256, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.leaky_relu(layer(x))
        out: torch.Tensor = x.square().mean()
        return out


class Weighted(nn.Module):
    """Normalise, gate and project [16, 8, 64]; the last four sequences do not reach the loss."""

    weights: torch.Tensor
    layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(64), nn.Linear(64, 128), nn.Linear(64, 64)
        weights = torch.ones(16, 1, 1)
        weights[12:] = 0
        self.register_buffer("weights", weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.layers):
            gate, value = self.up(self.norm(x)).chunk(2, -1)
            x = x + self.down(F.silu(gate) * value)
        out: torch.Tensor = (x.square() * self.weights).mean()
        return out


def _traced(model: type[nn.Module], *shape: int) -> Traced:
    torch.manual_seed(0)
    return trace_update(model(), torch.randn(shape))


def _same(traced: Traced, found: list[torch.Tensor | None]) -> None:
    for one, other in zip(found, traced.expected[1], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]


def test_inputs_of_linear_layers_are_rounded_stochastically_and_others_to_the_nearest() -> None:
    units = _traced(Weighted, 16, 8, 64).units().units
    rounding = {name: rounding_for(unit, "int8") for name, unit in units.items()}
    inputs = {name for name, found in rounding.items() if found == "stochastic"}
    # The first and second norm's scaled output, the first and second gated product.
    assert inputs == {"norm:mul#2", "norm:mul#4", "mul", "mul#2"}
    assert rounding["up:addmm"] == "nearest"


def test_rows_that_are_summed_have_one_scale_in_eight_bit_floats() -> None:
    units = _traced(Weighted, 16, 8, 64).units().units
    codecs = {name: codec_for(unit, "fp8_e4m3") for name, unit in units.items()}
    # The second norm's input. Of the first, which is at hand, no copies are kept.
    assert codecs["down:addmm"] == Fp8E4M3("nearest", WHOLE_ROW)
    assert {name for name, codec in codecs.items() if codec.group != GROUP} == {"down:addmm"}  # type: ignore[attr-defined]


def test_tiers_are_rounded_stochastically_but_for_what_masks_are_made_from() -> None:
    tiers = "int8[:4/16x8]+int4"
    units = _traced(Weighted, 16, 8, 64).units().units.values()
    assert {rounding_for(unit, tiers) for unit in units} == {"stochastic"}
    rectified = [u for n, u in _traced(Signed, 256, 64).units().units.items() if "relu" in n]
    assert [rounding_for(unit, tiers) for unit in rectified] == ["nearest"] * 2


def test_an_exact_plan_keeps_masks_as_bits() -> None:
    traced = _traced(Masked, 256, 64)
    graph = traced.units()
    problem = problem_of(graph, gradient_error=0.0)
    masks = [name for name in graph.units if "gt" in name]
    offered = {u.name: [form.codec for form in u.codecs] for u in problem.units}
    assert [offered[name] for name in masks] == [["bits"]] * 3
    stored = replay(problem, place(problem, prefer("store")))
    # A mask is 16 KiB, or 2 KiB in bits.
    tight = replace(problem, memory_cap_bytes=stored.peak_bytes - 20 * 1024)
    solution = solve(tight)
    assert solution.status == "optimal"
    kept = {solution.placement.get(name) for name in masks}
    assert "compress:bits" in kept
    assert solution.risk == 0
    _same(traced, cut(graph, solution.placement).run(traced)[1])


class Signed(nn.Module):
    """Three times linear and ReLU; a loss whose gradient has either sign, so that no mean hides an error."""

    signs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.register_buffer("signs", torch.randn(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        out: torch.Tensor = (x * self.signs).sum()
        return out


@pytest.mark.parametrize(
    ("wanted", "least", "most"), [("recompute", 0.05, 1), ("compress:bits", 0, 0.02)]
)
def test_masks_of_values_of_less_precision_are_charged_for_elements_on_the_wrong_side(
    wanted: str, least: float, most: float
) -> None:
    """Made from the int8 copy of ReLU's output, a mask has lost the small elements; kept in bits, it has not."""
    traced = _traced(Signed, 256, 64)
    graph = traced.units()
    problem = problem_of(graph, codecs=["int8", "bits"])
    masks = {u.name for u in problem.units if [f.codec for f in u.codecs] == ["bits"]}
    assert masks == {"le", "le#2", "le#3"}
    others = prefer("compress:int8", "store")
    placement = place(problem, lambda unit: wanted if unit.name in masks else others(unit))
    error = _error(traced, cut(traced.units(), placement).run(traced)[1])
    assert least < error <= replay(problem, placement).risk ** 0.5 <= most


def _error(traced: Traced, found: list[torch.Tensor | None]) -> float:
    pairs = [(f, e) for f, e in zip(found, traced.expected[1], strict=True) if f is not None]
    wrong = sum(float((f - e).double().square().sum()) for f, e in pairs)
    return float((wrong / sum(float(e.double().square().sum()) for _, e in pairs)) ** 0.5)


def test_sequences_that_do_not_reach_the_loss_need_not_be_kept() -> None:
    traced = _traced(Weighted, 16, 8, 64)
    graph = traced.units()
    codec = "store[:12/16x8]+drop"
    problem = problem_of(graph, codecs=[codec])
    placement = place(problem, prefer(f"compress:{codec}", "store"))
    dropped = [name for name, action in placement.items() if codec in action]
    assert len(dropped) >= 4
    _same(traced, cut(graph, placement).run(traced)[1])


class Divided(nn.Module):
    """Divide by what the rows say, through a view and a sign; the last four sequences do not reach the loss."""

    weights: torch.Tensor

    def __init__(self, power: float) -> None:
        super().__init__()
        self.down, self.power = nn.Linear(64, 64), power
        weights = torch.ones(16, 1, 1)
        weights[12:] = 0
        self.register_buffer("weights", weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        negated = -self.down(x).unsqueeze(-1)
        out: torch.Tensor = (negated.squeeze(-1) ** self.power * self.weights).mean()
        return out


@pytest.mark.parametrize(("power", "is_dropped"), [(-1.0, False), (-3, False), (3, True)])
def test_what_is_divided_by_is_never_dropped(power: float, is_dropped: bool) -> None:
    torch.manual_seed(0)
    traced = trace_update(Divided(power), torch.randn(16, 8, 64))
    graph, codec = traced.units(), "store[:12/16x8]+drop"
    placement = place(problem_of(graph, codecs=[codec]), prefer(f"compress:{codec}", "store"))
    assert (codec in placement["down:addmm"]) == is_dropped
    _same(traced, cut(graph, placement).run(traced)[1])


class Deep(Weighted):
    """The same with another layer."""

    layers = 3


def test_a_residual_stream_that_is_kept_as_copies_is_written_all_the_same() -> None:
    """Else each of its readers would make it from all that was ever added to it."""

    def written(action: str) -> list[str]:
        graph = _traced(Deep, 16, 8, 64).units()
        halves = cut(graph, place(problem_of(graph), prefer(action)))
        return [node.name for node in halves.forward.graph.nodes if compat.is_written_out(node)]

    assert written("compress:int8") == ["add_5"]
    assert written("store") == written("recompute") == []
