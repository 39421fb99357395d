"""The file of measured times: what is written is read, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hilore_planner.costs.table import CostTable, Entry, Owner
from hilore_planner.errors import HiloreError

HERE = Owner("cpu, 2 threads", "2.13.0")


def test_a_time_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    table = CostTable(path, HERE)
    with table.measuring():
        table.add({"a": Entry("mm", 7), "b": Entry("mm", 7)})
        table.add({"c": Entry("odd", None, "RuntimeError: no kernel")})
        table.add({"d": Entry("large", None, "out of memory", is_passing=True)})
    again = CostTable(path, HERE)
    assert again.get("a") == again.get("b") == Entry("mm", 7)
    assert again.get("c") == Entry("odd", None, "RuntimeError: no kernel")
    assert again.get("d") is None  # there may be room next time
    assert table.get("d") is not None
    assert CostTable.of_file(path).owner == HERE


def test_two_processes_keep_what_the_other_measured(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    first, second = CostTable(path, HERE), CostTable(path, HERE)
    with first.measuring():
        first.add({"a": Entry("mm", 7)})
    with second.measuring():
        assert second.get("a") == Entry("mm", 7)
        second.add({"b": Entry("bmm", 8)})
    assert {CostTable(path, HERE).get(key) for key in "ab"} == {Entry("mm", 7), Entry("bmm", 8)}


def test_a_file_of_another_device_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CostTable(path, HERE).add({"a": Entry("mm", 7)})
    with pytest.raises(HiloreError, match=r"is for cpu, 2 threads.*not for NVIDIA H200"):
        CostTable(path, Owner("NVIDIA H200", "2.13.0"))
    content = json.loads(path.read_text())
    for wrong, message in (
        (content | {"schema": 9}, "schema 9"),
        (content | {"times": {"a": {}}}, "damaged"),
        ([], "damaged"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(HiloreError, match=message):
            CostTable(path, HERE)


def test_an_owner_names_its_device() -> None:
    owner = Owner.of(torch.device("cpu"))
    assert owner.torch_version == torch.__version__
    assert f"{torch.get_num_threads()} threads" in owner.device
    assert (
        Owner("NVIDIA H200", "2.11.0+cu130").file_name == "costs-nvidia_h200-torch2.11.0_cu130.json"
    )
