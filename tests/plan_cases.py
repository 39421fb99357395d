"""Plans made by hand: a toy transformer whose actions are given, not solved for."""

from __future__ import annotations

from collections.abc import Mapping

from hilore_planner.plan import Figures, PlacementPlan, Provenance, UnitSource
from hilore_planner.solvers.problem import (
    CompressedForm,
    PlacementProblem,
    Position,
    Solution,
    Unit,
)
from hilore_planner.solvers.verify import replay

MIB = 2**20
ROLES = ("norm", "attn.q_proj", "attn.sdpa", "mlp.gate_proj", "mlp.act")
DEFAULT_ACTIONS = {
    "norm": "recompute",
    "attn.q_proj": "store",
    "attn.sdpa": "store",
    "mlp.gate_proj": "compress:int8",
    "mlp.act": "recompute",
}


def toy_problem(layers: int = 4, memory_cap_bytes: int = 1024 * MIB) -> PlacementProblem:
    """Layers of five units, each made at one forward and read at one backward position."""
    per_layer = len(ROLES)
    forward = layers * per_layer
    units = [_unit(layer, index, forward) for layer in range(layers) for index in range(per_layer)]
    units.append(_logits(forward))
    positions = [Position(f"forward.{k}", 100 * MIB) for k in range(forward + 1)]
    positions += [Position(f"backward.{k}", 120 * MIB) for k in range(forward + 1)]
    return PlacementProblem(
        units=tuple(units),
        positions=tuple(positions),
        first_backward=forward + 1,
        memory_cap_bytes=memory_cap_bytes,
        gradient_error=0.02,
        ladder=("int8", "fp8_e4m3"),
    )


def _unit(layer: int, index: int, forward: int) -> Unit:
    role = ROLES[index]
    made_at = layer * len(ROLES) + index
    wide = role.startswith("mlp")
    kept_bytes = (48 if wide else 16) * MIB
    return Unit(
        name=f"layers.{layer}.{role}",
        kept_bytes=kept_bytes,
        rebuilt_bytes=kept_bytes if wide else 0,
        recompute_ns=900_000 if "proj" in role else 60_000,
        keep_ns=4_000,
        parents=(f"layers.{layer}.{ROLES[index - 1]}",) if index else (),
        made_at=made_at,
        released_at=made_at,
        read_at=(2 * forward + 1 - made_at,),
        can_recompute=role != "attn.sdpa",
        codecs=(
            CompressedForm("int8", kept_bytes // 2, 20_000, 30_000, 1e-6),
            CompressedForm("fp8_e4m3", kept_bytes // 2, 15_000, 20_000, 9e-6),
        )
        if wide
        else (),
        inexact_risk=1e-7,
        finer_inexact_risks=(5e-8,),
        kind=role,
        layer=layer,
    )


def _logits(forward: int) -> Unit:
    return Unit(
        name="lm_head",
        kept_bytes=64 * MIB,
        rebuilt_bytes=64 * MIB,
        recompute_ns=2_000_000,
        keep_ns=10_000,
        parents=(f"layers.{forward // len(ROLES) - 1}.mlp.act",),
        made_at=forward,
        released_at=forward,
        read_at=(forward + 1,),
        finer_inexact_risks=(0.0,),
    )


def toy_plan(
    layers: int = 4,
    actions: Mapping[str, str] | None = None,
    memory_cap_bytes: int = 1024 * MIB,
) -> PlacementPlan:
    """A toy plan; ``actions`` by unit name override the default action of a unit's role."""
    problem = toy_problem(layers, memory_cap_bytes)
    placement = {unit.name: DEFAULT_ACTIONS.get(unit.kind, "recompute") for unit in problem.units}
    placement |= actions or {}
    return plan_of(problem, placement)


def plan_of(problem: PlacementProblem, placement: Mapping[str, str]) -> PlacementPlan:
    """The plan that ``placement`` makes of ``problem``; figures come from its replay."""
    found = replay(problem, placement)
    solution = Solution(
        status="feasible",
        engine="by hand",
        placement=dict(placement),
        objective_ns=found.time_ns,
        bound_ns=0,
        gap=1.0 if found.time_ns else 0.0,
        solver_seconds=0.25,
        peak_bytes=found.peak_bytes,
        peak_position=found.peak_position,
        saved_bytes=found.saved_bytes,
        risk=found.risk,
    )
    return PlacementPlan(
        region="update",
        problem=problem,
        solution=solution,
        sources={unit.name: source_of(unit) for unit in problem.units},
        provenance=Provenance(
            hilore="0.1.0",
            torch="2.13.0",
            device="NVIDIA H200",
            fingerprint="3f2a91c0d4e5",
            costs="roofline",
            options={"memory_cap": "1GiB", "gradient_error": "0.02"},
        ),
        predicted=Figures(time_ns=42_000_000),
    )


def source_of(unit: Unit) -> UnitSource:
    """A source like those of a real program."""
    wide = 6144 if unit.kept_bytes == 48 * MIB else 2048
    return UnitSource(
        module=f"model.{unit.name}",
        role=unit.kind or unit.name,
        op="mm" if "proj" in unit.kind else "mul",
        source="model.py:120",
        shape=(4, 1024, wide),
        dtype="torch.bfloat16",
        forced="attention is not replayed bit by bit" if not unit.can_recompute else "",
    )
