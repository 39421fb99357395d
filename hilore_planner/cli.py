"""The ``hilore`` command."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root() -> None:
    """Read, compare and re-solve activation-memory plans."""


def main() -> None:
    """Run the command line."""
    app()
