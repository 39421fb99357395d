"""Placement: the problem, its integer program, and the replay that checks a solution."""

from hilore_planner.solvers.milp import solve
from hilore_planner.solvers.pipeline import Engine
from hilore_planner.solvers.problem import (
    CompressedForm,
    PlacementProblem,
    Position,
    Solution,
    Unit,
)
from hilore_planner.solvers.sweep import sweep
from hilore_planner.solvers.verify import Replay, refigured, replay

__all__ = [
    "CompressedForm",
    "Engine",
    "PlacementProblem",
    "Position",
    "Replay",
    "Solution",
    "Unit",
    "refigured",
    "replay",
    "solve",
    "sweep",
]
