"""``hilore bench compile-time``: what planning adds to the time that Inductor takes.

The update of a narrow Qwen2 of many layers, whose kernels take next to no time, is compiled by plain Inductor and with
a plan: with all the memory it likes, and halfway between that and the least it was estimated to need. The latter
recomputes, and so has more to compile; beside it stands plain Inductor under torch's own memory budget, at the share of
it that saves no more bytes. Each is a process of its own with empty caches; what was measured for the first plan, what
operations take and cost, is known for the second.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.attribution import read_steps
from hilore_planner.bench.budget import share_that_saves
from hilore_planner.bench.peak import estimated_caps
from hilore_planner.bench.runner import Row
from hilore_planner.bench.worker import counted_rounds
from hilore_planner.grpo.actor import Batch, actor_loss, build_qwen2, random_batch
from hilore_planner.passes import compat
from hilore_planner.plan import PlacementPlan
from hilore_planner.profiling import wait

_SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 16_384,
}
_SEQUENCES, _PROMPT, _RESPONSE = 4, 64, 256


def bench_compile_time(layers: int, *, repeats: int, costs: str, device: str) -> Iterator[Row]:
    """Rows of plain Inductor, a plan with plenty of memory, one with half of what it can do without, and a budget.

    All are compiled in turn, ``repeats`` times, as processors are slower when others are at work. A row is that of the
    first call that took least work.
    """
    with tempfile.TemporaryDirectory() as name:
        process = _Process(Path(name), {"layers": layers, "device": device, "costs": costs})
        found: dict[str, Row] = {}
        for count in range(repeats):
            for row in process.rows():
                best = found[row["variant"]] = _less_work(found.get(row["variant"], row), row)
                if count == repeats - 1:
                    yield best | _added(found["inductor"], best)


def _less_work(one: Row, other: Row) -> Row:
    return min(one, other, key=lambda row: float(row["first_call_cpu_seconds"]))


def _added(plain: Row, other: Row) -> Row:
    """How much more work a first call is than that of plain Inductor; how much longer cutting the graph takes."""
    if other["variant"] == plain["variant"]:
        return {}
    more = other["first_call_cpu_seconds"] / plain["first_call_cpu_seconds"] - 1
    row: Row = {"added_share": round(more, 4)}
    if "planning_seconds" in other:
        longer_seconds = other["planning_seconds"] - plain["partitioner_seconds"]
        row["planning_added_share"] = round(longer_seconds / plain["first_call_seconds"], 4)
    return row


class TimedPartitioner(compat.CustomPartitionerFn):
    """Torch's own, and how long it takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> TimedPartitioner:
        return self  # Inductor copies its settings; the seconds are to come here

    def uuid(self) -> str:
        """Part of Inductor's cache key."""
        return "torch's own partitioner, timed"

    def __call__(
        self, gm: torch.fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        """Cut a joint graph."""
        start = time.perf_counter()
        try:
            return compat.default_partition(gm, joint_inputs, **keywords)
        finally:
            self.seconds += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class _Process:
    """Starts processes of one update that keep what they leave in a folder."""

    folder: Path
    message: dict[str, Any]

    def rows(self) -> Iterator[Row]:
        """Of each way to compile it, with empty caches; a plan's measurements are known for the next one."""
        yield self.answer("inductor")
        yield self.answer("hilore uncapped")
        cap_bytes = estimated_caps(self.plan("hilore uncapped"), 0.0, 3)[1]
        capped = self.answer("hilore", cap_bytes=cap_bytes, known="hilore uncapped")
        yield capped
        (share,) = self.answer("search", saved_bytes=capped["saved_bytes"])
        yield self.answer(f"budget {share:.3f}", budget=share)

    def plan(self, variant: str) -> PlacementPlan:
        """What a variant was planned to do."""
        return PlacementPlan.load(self._folder(variant) / "plan.json")

    def _folder(self, variant: str) -> Path:
        return self.folder / variant.replace(" ", "-")  # compilers are not given spaces

    def answer(self, variant: str, *, known: str = "", **more: Any) -> Any:
        """What a new process with empty caches says of a variant."""
        folder = self._folder(variant)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "cache" / "hilore").mkdir(parents=True)
        for table in (self._folder(known) / "cache" / "hilore").glob("*-torch*.json"):
            shutil.copy(table, folder / "cache" / "hilore")
        found = subprocess.run(
            [sys.executable, "-m", __spec__.name],
            input=json.dumps(self.message | {"variant": variant, "folder": str(folder)} | more),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        )
        print(found.stdout.strip(), file=sys.stderr, flush=True)
        return json.loads(found.stdout)


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each row."""
    return [
        f"{row['setting']}, {row['variant']}: first call {row['first_call_seconds']:.1f} s, "
        f"{row['first_call_cpu_seconds']:.1f} s of them at work" + _planning(row)
        for row in rows
    ]


def _planning(row: Row) -> str:
    if "added_share" not in row:
        return ""
    text = f", {row['added_share']:+.1%} in all"
    if "planning_seconds" not in row:
        return text
    return (
        f"{text}; {row['rounds']} rounds, in the last planning took {row['planning_seconds']:.2f} s: "
        f"{row['planning_added_share']:+.1%} of plain Inductor's time beyond torch's own partitioner"
    )


def _cpu_seconds() -> float:
    """Of this process and those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Compile as a message on standard input says; the row goes to standard output."""
    message = json.load(sys.stdin)
    device = torch.device(message["device"])
    loss, batch = _update(message["layers"], device)
    if message["variant"] == "search":
        print(json.dumps([share_that_saves(loss, batch, message["saved_bytes"])]))
        return
    partitioner = TimedPartitioner()
    compiled = _compiled(loss, message, partitioner)
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    with counted_rounds() as rounds:
        torch.autograd.backward(compiled(*batch))
        wait(device)
    row: Row = {
        "setting": f"narrow, {message['layers']} layers",
        "variant": message["variant"],
        "cap_bytes": message.get("cap_bytes"),
        "first_call_seconds": round(time.perf_counter() - start, 2),
        "first_call_cpu_seconds": round(_cpu_seconds() - cpu_start, 2),
        "load": os.getloadavg()[0],
    }
    if partitioner.seconds:
        row["partitioner_seconds"] = round(partitioner.seconds, 3)
    print(json.dumps(row | _planned(Path(message["folder"]), rounds.count)))


def _update(layers: int, device: torch.device) -> tuple[Callable[..., Any], Batch]:
    """A loss to compile and what it takes."""
    model = build_qwen2(dtype=torch.float32, device=device, num_hidden_layers=layers, **_SHAPE)
    batch = random_batch(
        sequences=_SEQUENCES,
        prompt=_PROMPT,
        response=_RESPONSE,
        vocab_size=_SHAPE["vocab_size"],
        device=device,
    )
    return actor_loss(model, prompt=_PROMPT), batch


def _compiled(
    loss: Callable[..., Any], message: dict[str, Any], partitioner: TimedPartitioner
) -> Callable[..., Any]:
    """What compiles when it is first called."""
    how: dict[str, Any] = {"options": {"custom_partitioner_fn": partitioner}}
    if message["variant"].startswith("hilore"):
        folder = message["folder"]
        options = {"plan": f"{folder}/plan.json", "dump_dir": folder, "costs": message["costs"]}
        options |= {"memory_cap": message["cap_bytes"]} if "cap_bytes" in message else {}
        how = {"backend": "hilore", "options": options | {"reserved": 0}}
    compat.set_activation_memory_budget(message.get("budget", 1.0))
    return torch.compile(loss, dynamic=False, **how)


def _planned(folder: Path, rounds: int) -> Row:
    """What there is to say of a planned update; nothing of others."""
    if not (folder / "plan.json").exists():
        return {}
    (record,) = read_steps(folder)
    return {
        "rounds": rounds,
        "planning_seconds": round(record.planning_seconds, 3),
        "compile_seconds": round(record.compile_seconds, 3),
        "saved_bytes": PlacementPlan.load(folder / "plan.json").solution.saved_bytes,
    }


if __name__ == "__main__":
    main()
