"""A worker that sleeps as long as it is told, takes as many turns as it is told, and answers when they were."""

from __future__ import annotations

import json
import sys
import time

from hilore_planner.bench.turns import Turn

if __name__ == "__main__":
    seconds, turns = json.loads(sys.stdin.readline())
    time.sleep(seconds)
    turn = Turn()
    turn.take()
    turn.take()  # is there already
    times = [time.monotonic()]
    for _ in range(turns - 1):
        turn.take_next()
        times.append(time.monotonic())
    print(json.dumps([seconds, times]), flush=True)
