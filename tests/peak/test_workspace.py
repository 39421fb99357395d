"""Measured workspaces: the table, its file, and what is never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.errors import HiloreError
from hilore_planner.peak.workspace import MeasuredWorkspaces, blas_workspace_bytes, call_key

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def heads() -> torch.Tensor:
    return torch.randn(1, 2, 256, 32)


def test_attention_takes_more_than_it_returns_and_fake_tensors_do() -> None:
    q = heads()
    real = MeasuredWorkspaces("cpu").transient_bytes(FLASH, (q, q, q, 0.0, True), {})
    with FakeTensorMode():
        q = heads()
        fake = MeasuredWorkspaces("cpu").transient_bytes(FLASH, (q, q, q, 0.0, True), {})
    assert real == fake > 0


def test_arguments_may_be_expanded() -> None:
    """A mask of one sequence's size that is read for each of many; its elements lie on each other."""
    q, mask = heads().repeat(2, 1, 1, 1), torch.zeros(1, 1, 256, 256).expand(2, 2, 256, 256)
    taken = MeasuredWorkspaces("cpu").transient_bytes(FLASH, (q, q, q), {"attn_mask": mask})
    assert taken > 0


def test_an_operation_without_workspace_takes_none() -> None:
    x = torch.randn(64, 64)
    workspaces = MeasuredWorkspaces("cpu")
    assert workspaces.transient_bytes(torch.mm, (x, x), {"out": torch.empty(64, 64)}) == 0
    assert workspaces.transient_bytes(torch.ops.aten.tanh.default, (x,), {}) == 0


def test_an_operation_on_another_device_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "workspaces.json"
    x = torch.empty(8, 8, device="meta")
    assert (
        MeasuredWorkspaces("cpu", path).transient_bytes(torch.ops.aten.mm.default, (x, x), {}) == 0
    )
    assert not path.exists()


def test_views_and_allocations_are_not_run(tmp_path: Path) -> None:
    path = tmp_path / "workspaces.json"
    workspaces = MeasuredWorkspaces("cpu", path)
    x = torch.randn(8)
    assert workspaces.transient_bytes(torch.ops.aten.view.default, (x, [2, 4]), {}) == 0
    assert workspaces.transient_bytes(torch.ops.aten.empty.memory_format, ([1 << 50],), {}) == 0
    assert not path.exists()


def test_the_file_answers_instead_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "workspaces.json"
    q = heads()
    arguments = (q, q, q, 0.0, True)
    measured = MeasuredWorkspaces("cpu", path).transient_bytes(FLASH, arguments, {})
    content = json.loads(path.read_text())
    assert content["transient_bytes"] == {call_key(FLASH, arguments, {}): measured}
    content["transient_bytes"][call_key(FLASH, arguments, {})] = 12345
    path.write_text(json.dumps(content))
    assert MeasuredWorkspaces("cpu", path).transient_bytes(FLASH, arguments, {}) == 12345


@pytest.mark.parametrize(
    ("change", "message"),
    [({"torch": "1.0"}, "is for"), ({"device": "abacus"}, "is for"), ({"schema": 0}, "is for")],
)
def test_a_file_of_another_machine_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "workspaces.json"
    q = heads()
    MeasuredWorkspaces("cpu", path).transient_bytes(FLASH, (q, q, q), {})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(HiloreError, match=message):
        MeasuredWorkspaces("cpu", path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"transient_bytes": {"mm": "many"}}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "workspaces.json"
    path.write_text(text)
    with pytest.raises(HiloreError, match=r"workspaces\.json is damaged"):
        MeasuredWorkspaces("cpu", path)


def test_calls_are_told_apart_by_layout_type_and_arguments() -> None:
    x = torch.randn(4, 6)
    op = torch.ops.aten.sum.dim_IntList
    keys = {
        call_key(op, (x, [0]), {}),
        call_key(op, (x, [1]), {}),
        call_key(op, (x.double(), [0]), {}),
        call_key(op, (x.t().contiguous().t(), [0]), {}),
        call_key(op, (x, [0]), {"keepdim": True}),
        call_key(torch.mm, (x, [0]), {}),
    }
    assert len(keys) == 6
    assert call_key(op, (x, [0]), {}) == call_key(op, (torch.ones(4, 6), [0]), {})


def test_the_cpu_keeps_no_blas_workspace() -> None:
    assert blas_workspace_bytes("cpu") == 0
