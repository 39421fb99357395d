"""A process that answers each line with its own number and the message; it ends at ``end``."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("end"):
            sys.exit(3)
        print("something else", flush=True)
        print(json.dumps({"process": os.getpid(), **message}), flush=True)
