"""One head, all its ways, in a process of its own: compile, say so, wait for the device, time, print the rows."""

from __future__ import annotations

import json
import sys

import torch

from hilore_planner.bench.head import HeadShape, prepare
from hilore_planner.bench.turns import Turn
from hilore_planner.passes import compat


def main() -> None:
    """Read one shape from standard input, answer on standard output."""
    message = json.loads(sys.stdin.readline())
    shape, device = HeadShape(**message["shape"]), torch.device(message["device"])
    with compat.many_compiled_forms(64):
        prepared = prepare(shape, tuple(message["chunks"]), device)
        Turn().take()
        print(json.dumps(prepared.rows(message["repeats"])), flush=True)


if __name__ == "__main__":
    main()
