"""A worker that sleeps as long as it is told, takes its turn, and answers."""

from __future__ import annotations

import json
import sys
import time

from hilore_planner.bench.turns import Turn

if __name__ == "__main__":
    seconds = json.loads(sys.stdin.readline())
    time.sleep(seconds)
    turn = Turn()
    turn.take()
    turn.take()  # is there already
    print(json.dumps([seconds, turn.waited_seconds]), flush=True)
