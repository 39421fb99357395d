"""Costs from a table: what is asked for is timed once, and the rules price with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from hilore_planner.costs.measured import Measured
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry, Owner
from hilore_planner.passes.chains import Chain
from hilore_planner.passes.cost import Roofline
from hilore_planner.passes.devices import PROFILES
from hilore_planner.passes.ops import OpKind, flops
from hilore_planner.passes.problem import build_problem
from hilore_planner.passes.units import RecoveryGraph
from hilore_planner.solvers.problem import PlacementProblem
from tests.costs.ready import Ready
from tests.passes.joint import Traced, trace_update
from tests.passes.programs import Stack, seeded

HERE = Owner("cpu", "test")


@dataclass(frozen=True)
class Script(Stopwatch):
    """Says 1000 ns for whatever it is asked, one more each time, and remembers what that was."""

    asked: list[Sample] = field(default_factory=list)
    broken: str = "nothing"

    def ready(self, sample: Sample) -> Run:
        if self.broken in sample.what:
            raise RuntimeError("no kernel\nof this kind")
        return Ready()

    def time_ns(self, sample: Sample, run: Run) -> int:
        assert isinstance(run, Ready)
        self.asked.append(sample)
        return 1000 + len(self.asked)


@pytest.fixture(scope="module")
def stack() -> Traced:
    """Two equal layers of attention and MLP."""
    return trace_update(seeded(Stack), torch.randn(2, 64, 64, requires_grad=True))


def script(**settings: str) -> Script:
    return Script(torch.device("cpu"), **settings)  # type: ignore[arg-type]


def measured(path: Path, stopwatch: Script | None, *, is_lossy: bool = False) -> Measured:
    table = CostTable(path, HERE)
    return Measured(table, stopwatch, Roofline(PROFILES["cpu"]), is_lossy=is_lossy)


def priced(graph: RecoveryGraph, costs: Measured) -> tuple[PlacementProblem, int]:
    problem = build_problem(
        graph, costs, codecs=("int8",), base_bytes=0, memory_cap_bytes=1, gradient_error=0.1
    )
    return problem, costs.program_ns(graph)


def test_equal_layers_share_and_a_second_run_measures_nothing(
    stack: Traced, tmp_path: Path
) -> None:
    path, first = tmp_path / "costs.json", script()
    graph, costs = stack.units(), measured(path, first)
    guessed = priced(graph, costs)
    assert costs.settle()
    known = priced(graph, costs)
    assert known != guessed
    assert not costs.settle()  # nothing new was asked for
    assert len({sample.key for sample in first.asked}) == len(first.asked)
    products = [node for node in graph.schedule.kinds if node.name.startswith(("mm", "addmm"))]
    timed = [sample for sample in first.asked if sample.what.startswith(("mm", "addmm"))]
    assert len(timed) <= len(products) // 2 + 1

    second = script()
    again = measured(path, second)
    assert priced(stack.units(), again) == known
    assert not again.settle()
    assert not second.asked
    assert again.unmeasured == ()


def test_what_another_process_measures_meanwhile_is_not_timed_again(
    stack: Traced, tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"

    @dataclass(frozen=True)
    class Beside(Script):
        """While a product is readied, another process measures it."""

        def ready(self, sample: Sample) -> Run:
            if sample.what.startswith("mm"):
                CostTable(path, HERE).add({sample.key: Entry(sample.what, 777)})
            return super().ready(sample)

    stopwatch, graph = Beside(torch.device("cpu")), stack.units()
    costs = measured(path, stopwatch)
    priced(graph, costs)
    costs.settle()
    products = [n for n in graph.schedule.kinds if n.name.startswith("mm")]
    assert products
    assert all(costs.node_ns(node) == 777 for node in products)
    assert stopwatch.asked
    assert not any(sample.what.startswith("mm") for sample in stopwatch.asked)


def test_a_step_costs_what_was_measured(stack: Traced, tmp_path: Path) -> None:
    graph, stopwatch = stack.units(), script()
    costs = measured(tmp_path / "costs.json", stopwatch)
    priced(graph, costs)
    costs.settle()
    problem, program_ns = priced(graph, costs)
    steps = [costs.piece_ns(piece) for piece in costs.chains(graph).pieces]
    assert program_ns == sum(steps)
    assert all(ns == 0 or 1000 < ns <= 1000 + len(stopwatch.asked) for ns in steps)
    for unit in problem.units:
        source = graph.units[unit.name]
        if graph.schedule.kinds[source.maker] is OpKind.EXTERN and unit.can_recompute:
            assert unit.recompute_ns == costs.node_ns(source.maker)


def test_codecs_are_measured_where_they_may_be_used(stack: Traced, tmp_path: Path) -> None:
    asked = {}
    for is_lossy in (False, True):
        stopwatch = script()
        costs = measured(tmp_path / f"{is_lossy}.json", stopwatch, is_lossy=is_lossy)
        priced(stack.units(), costs)
        costs.settle()
        asked[is_lossy] = [s.what for s in stopwatch.asked if "int8" in s.what]
    assert asked[False] == []
    assert any(what.startswith("encode") for what in asked[True])
    assert any(what.startswith("decode") for what in asked[True])


def test_what_cannot_be_measured_is_priced_by_roofline_and_said(
    stack: Traced, tmp_path: Path
) -> None:
    path, stopwatch = tmp_path / "costs.json", script(broken="addmm")
    graph, costs = stack.units(), measured(path, stopwatch)
    priced(graph, costs)
    costs.settle()
    priced(graph, costs)
    node = next(node for node in graph.schedule.kinds if node.name == "addmm")
    assert costs.node_ns(node) == Roofline(PROFILES["cpu"]).node_ns(node)
    assert any("addmm" in what and "no kernel" in what for what in costs.unmeasured)
    # The reason is in the file: the next run neither tries again nor keeps silent.
    again = measured(path, later := script())
    priced(stack.units(), again)
    assert not again.settle()
    assert (later.asked, again.unmeasured) == ([], costs.unmeasured)


def test_without_the_device_what_is_missing_is_said(stack: Traced, tmp_path: Path) -> None:
    graph, costs = stack.units(), measured(tmp_path / "costs.json", None)
    priced(graph, costs)
    assert not costs.settle()
    assert any("mm" in what and "not in" in what for what in costs.unmeasured)


def test_a_changed_step_of_a_plan_costs_by_the_bytes_it_moves(
    stack: Traced, tmp_path: Path
) -> None:
    graph = stack.units()
    costs = measured(tmp_path / "costs.json", script())
    priced(graph, costs)
    costs.settle()
    priced(graph, costs)
    unit = next(u for u in graph.units.values() if u.rebuilt_bytes == 0 and u.can_recompute)
    chain = costs.chains(graph).of_unit(unit)
    chains = [piece for piece in costs.chains(graph).pieces if isinstance(piece, Chain)]
    chains += [
        costs.chains(graph).of_unit(u)
        for u in graph.units.values()
        if u.rebuilt_bytes and u.can_recompute
    ]
    known = [c for c in chains if c.nodes and c.moved_bytes and c != chain]
    rates = [costs.chain_ns(c) / c.moved_bytes for c in known]
    rate = (costs.piece_ns(chain) - costs.launch_ns) / chain.moved_bytes
    assert min(rates) < rate < max(rates)


def test_chains_that_only_a_plan_has_are_measured_until_the_rest_is_small(
    stack: Traced, tmp_path: Path
) -> None:
    graph, stopwatch = stack.units(), script()
    costs = measured(tmp_path / "costs.json", stopwatch)
    priced(graph, costs)
    costs.settle()
    before = len(stopwatch.asked)
    units = [u for u in graph.units.values() if u.rebuilt_bytes == 0 and u.can_recompute]
    chains = [costs.chains(graph).of_unit(unit) for unit in units]
    known = [piece for piece in costs.chains(graph).pieces if isinstance(piece, Chain)]
    costs.look_at(known)
    assert len(stopwatch.asked) == before
    costs.look_at([*chains, *chains])
    new = {sample.key for sample in stopwatch.asked[before:]}
    assert 0 < len(new) == len(stopwatch.asked) - before <= len(chains)
    assert costs.measuring_seconds > 0
    costs.look_at([*chains, *chains])
    assert len(stopwatch.asked) == before + len(new)
    costs.look_at([*known * 1000, *chains])  # too little to matter, if any are left
    assert len(stopwatch.asked) == before + len(new)


def test_products_of_other_sizes_take_time_at_the_rate_of_those_that_were_measured(
    stack: Traced, tmp_path: Path
) -> None:
    graph, estimate = stack.units(), Roofline(PROFILES["cpu"])
    costs = measured(tmp_path / "costs.json", script())
    assert costs.product_ns(torch.float32, 10**9) == estimate.product_ns(torch.float32, 10**9)
    priced(graph, costs)
    costs.settle()
    costs.program_ns(graph)
    products = [
        node
        for node, kind in graph.schedule.kinds.items()
        if kind is OpKind.EXTERN and node.name.startswith(("mm", "addmm"))
    ]
    rate = sum(map(flops, products)) / sum(map(costs.node_ns, products))
    assert costs.product_ns(torch.float32, 10**9) == pytest.approx(10**9 / rate, rel=1e-3)
    assert costs.product_ns(torch.bfloat16, 10**9) == estimate.product_ns(torch.bfloat16, 10**9)
