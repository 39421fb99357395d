"""Planning an update without its device: nothing is compiled, run or allocated."""

from hilore_planner.offline.planner import plan

__all__ = ["plan"]
