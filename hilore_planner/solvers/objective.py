"""What the integer program minimises."""

from __future__ import annotations

from hilore_planner.solvers.linear import LinearModel
from hilore_planner.solvers.problem import compress_action
from hilore_planner.solvers.variables import RECOMPUTE, STORE, Variables


def minimise_time(model: LinearModel, variables: Variables, unit_ns: float) -> None:
    """Minimise Σ t_recompute·recompute + Σ (t_encode + t_decode)·compress + Σ t_keep·store.

    In units of ``unit_ns``.
    """
    for u, actions in enumerate(variables.actions):
        unit = variables.structure.problem.units[u]
        times = {STORE: unit.keep_ns, RECOMPUTE: unit.recompute_ns}
        for form in variables.structure.forms[u]:
            times[compress_action(form.codec)] = form.encode_ns + form.decode_ns
        for action, column in actions.items():
            model.cost[column] = times[action] / unit_ns
