"""What the program's own checkpointing says: overridden, respected or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from hilore_planner.errors import RegionError
from hilore_planner.passes.graph import CheckpointTags, JointGraph, normalise
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units
from tests.passes.joint import Traced, copied, module_update


class _Block(nn.Module):
    """Two linears; only the products of the first are to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 64, bias=False)
        self.down = nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


def _keep_first_products(_context: Any, op: Any, *args: Any, **_kwargs: Any) -> CheckpointPolicy:
    is_first = op is torch.ops.aten.mm.default and args[1].shape[0] == 16
    return CheckpointPolicy.MUST_SAVE if is_first else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_keep_first_products)  # type: ignore[no-untyped-call]


class _Checkpointed(nn.Module):
    def __init__(self, *, selective: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.selective = selective

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra: dict[str, Any] = {}
        if self.selective:
            extra["context_fn"] = _contexts
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, **extra)
        return x.square().mean()


@pytest.fixture(scope="module")
def whole() -> Traced:
    return module_update(_Checkpointed(selective=False), torch.randn(8, 16))


def _joint(program: Traced, handling: CheckpointTags) -> JointGraph:
    return normalise(
        copied(program.gm),
        num_forward_outputs=program.num_forward_outputs,
        static_input_indices=program.static_input_indices,
        checkpoint_tags=handling,
    )


def _units(program: Traced, handling: CheckpointTags) -> RecoveryGraph:
    joint = _joint(program, handling)
    return build_units(joint, build_schedule(joint), small_bytes=0)


def test_overridden_tags_leave_everything_free_to_choose(whole: Traced) -> None:
    joint = _joint(whole, "override")
    assert not joint.tags
    assert all(unit.forced == "" for unit in _units(whole, "override").units.values())


def test_respected_regions_are_made_again_but_for_what_leaves_them(whole: Traced) -> None:
    units = _units(whole, "respect").units
    inner = [unit for name, unit in units.items() if "up" in name]
    assert inner
    assert all(unit.forced == "checkpoint policy" and not unit.can_store for unit in inner)
    # The first block's output enters the second block's region: it is what its replay starts from.
    assert any(unit.can_store and "blocks.1" not in name for name, unit in units.items())


def test_a_selective_policy_is_respected_op_by_op() -> None:
    program = module_update(_Checkpointed(selective=True), torch.randn(8, 16))
    units = _units(program, "respect").units
    products = [unit for unit in units.values() if unit.origin.op == "mm"]
    kept = [unit for unit in products if not unit.can_recompute]
    assert kept
    assert all(unit.can_store and unit.forced == "checkpoint policy" for unit in kept)


def test_refused_tags_are_named(whole: Traced) -> None:
    with pytest.raises(
        RegionError, match=r"uses torch.utils.checkpoint at .*checkpoint_tags is 'error'"
    ):
        _joint(whole, "error")


def test_a_program_without_checkpointing_is_not_refused() -> None:
    plain = module_update(_Block(), torch.randn(8, 16, requires_grad=True))
    assert not _joint(plain, "error").tags
