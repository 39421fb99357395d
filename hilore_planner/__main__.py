"""``python -m hilore_planner`` is the ``hilore`` command."""

from hilore_planner.cli import main

main()
