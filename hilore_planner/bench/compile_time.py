"""``hilore bench compile-time``: what planning adds to the time that Inductor takes.

The update of a narrow Qwen2 of many layers, whose kernels take next to no time, is compiled by plain Inductor and with
a plan: with all the memory it likes, and halfway between that and the least it was estimated to need. Each is a process
of its own with empty caches; what was measured for the first plan, what operations take and cost, is known for the
second.
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
from pathlib import Path
from typing import Any

import torch

from hilore_planner.attribution import read_steps
from hilore_planner.bench.cost import planning_share
from hilore_planner.bench.peak import estimated_caps
from hilore_planner.bench.runner import Row
from hilore_planner.bench.trial import wait
from hilore_planner.bench.worker import counted_rounds
from hilore_planner.grpo.actor import actor_loss, build_qwen2, random_batch
from hilore_planner.plan import PlacementPlan

_SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 65_536,
}
_SEQUENCES, _PROMPT, _RESPONSE = 4, 64, 256


def bench_compile_time(layers: int, *, costs: str, device: str) -> Iterator[Row]:
    """Rows of plain Inductor, of a plan with plenty of memory, and of one with half of what it can do without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        message = {"layers": layers, "device": device, "costs": costs, "folder": name}
        plain = _compiled(message | {"variant": "inductor"}, folder / "plain")
        yield plain
        uncapped = message | {"variant": "hilore uncapped", "plan": str(plan)}
        yield _beside(plain, _compiled(uncapped, folder / "first"))
        for table in (folder / "first" / "hilore").glob("*-torch*.json"):
            (folder / "second" / "hilore").mkdir(parents=True, exist_ok=True)
            shutil.copy(table, folder / "second" / "hilore")
        cap_bytes = estimated_caps(PlacementPlan.load(plan), 0.0, 3)[1]
        capped = message | {"variant": "hilore", "cap_bytes": cap_bytes}
        yield _beside(plain, _compiled(capped, folder / "second"))


def _beside(plain: Row, planned: Row) -> Row:
    """With how much more work a first call is that plans, in all its rounds."""
    more = planned["first_call_cpu_seconds"] / plain["first_call_cpu_seconds"] - 1
    return planned | {"added_share": round(more, 4)}


def _compiled(message: dict[str, Any], cache: Path) -> Row:
    """The row of one process."""
    found = subprocess.run(
        [sys.executable, "-m", __spec__.name],
        input=json.dumps(message),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
    )
    row: Row = json.loads(found.stdout)
    print(f"{row['variant']}: {row['first_call_seconds']:.1f} s", file=sys.stderr, flush=True)
    return row


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each row."""
    return [
        f"{row['setting']}, {row['variant']}: first call {row['first_call_seconds']:.1f} s, "
        f"{row['first_call_cpu_seconds']:.1f} s of them at work" + _planning(row)
        for row in rows
    ]


def _planning(row: Row) -> str:
    if "planning_seconds" not in row:
        return ""
    return (
        f", {row['added_share']:+.1%} in all; {row['rounds']} rounds, in the last planning took "
        f"{row['planning_seconds']:.2f} s, {planning_share(row):.1%} of Inductor's time"
    )


def _cpu_seconds() -> float:
    """Of this process and those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Compile as a message on standard input says; the row goes to standard output."""
    message = json.load(sys.stdin)
    device, steps = torch.device(message["device"]), Path(message["folder"]) / message["variant"]
    update = _update(message, device, steps)
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    with counted_rounds() as rounds:
        update()
        wait(device)
    row: Row = {
        "setting": f"narrow, {message['layers']} layers",
        "variant": message["variant"],
        "cap_bytes": message.get("cap_bytes"),
        "first_call_seconds": round(time.perf_counter() - start, 2),
        "first_call_cpu_seconds": round(_cpu_seconds() - cpu_start, 2),
        "load": os.getloadavg()[0],
    }
    if message["variant"] != "inductor":
        (record,) = read_steps(steps)
        row |= {
            "rounds": rounds.count,
            "planning_seconds": round(record.planning_seconds, 3),
            "compile_seconds": round(record.compile_seconds, 3),
        }
    print(json.dumps(row))


def _update(message: dict[str, Any], device: torch.device, steps: Path) -> Callable[[], None]:
    """Forward and backward, compiled when they are first run."""
    model = build_qwen2(
        dtype=torch.float32, device=device, num_hidden_layers=message["layers"], **_SHAPE
    )
    batch = random_batch(
        sequences=_SEQUENCES,
        prompt=_PROMPT,
        response=_RESPONSE,
        vocab_size=_SHAPE["vocab_size"],
        device=device,
    )
    how: dict[str, Any] = {}
    if message["variant"] != "inductor":
        options = {"dump_dir": str(steps), "reserved": 0, "costs": message["costs"]}
        options |= {"plan": message["plan"]} if "plan" in message else {}
        options |= {"memory_cap": message["cap_bytes"]} if "cap_bytes" in message else {}
        how = {"backend": "hilore", "options": options}
    loss = torch.compile(actor_loss(model, prompt=_PROMPT), dynamic=False, **how)
    return lambda: torch.autograd.backward(loss(*batch))


if __name__ == "__main__":
    main()
