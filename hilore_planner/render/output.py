"""Where commands print: a terminal, a pipe, or one JSON object."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

_PIPE_WIDTH = 10_000
"""Columns where the output is no terminal: nothing is left out or cut."""


def emit(
    as_json: bool, record: Callable[[], dict[str, Any]], view: Callable[[int], list[Text]]
) -> None:
    """Print a record as JSON, or a view of it laid out for so many columns."""
    if as_json:
        print(json.dumps(record(), indent=2))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(width=width, highlight=False, soft_wrap=True)
    for line in view(width):
        console.print(line)
