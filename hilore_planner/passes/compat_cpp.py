"""Where Inductor's C++ backend ends one function and starts the next: the part of :mod:`compat` for the CPU.

It calls all loops between two library calls as one function, whose buffers are there from its first loop to its last. A
tied value starts a function of its own: what is read no more before it is gone by then. Values that are made again one
after another share one.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.fx import Node

from hilore_planner.passes.marks import MADE

_TIE = "hilore_tie"


def start_function(kernel: Any, tie: Node) -> None:
    """Have the loop that makes an IR operation start a function, for it is tied by ``tie``."""
    _end_functions()
    setattr(kernel, _TIE, tie)


@functools.cache
def _end_functions() -> None:
    """Have the backend ask before each loop whether it starts a function.

    Source: ``torch/_inductor/scheduler.py`` (``Scheduler._codegen`` asks ``ready_to_flush`` after each loop).
    """
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.virtualized import V

    is_ready: Any = CppScheduling.ready_to_flush

    def ready_to_flush(self: CppScheduling) -> bool:
        scheduler: Any = V.graph.scheduler
        place = scheduler.nodes.index(scheduler.current_node) + 1
        is_last = place == len(scheduler.nodes)
        is_apart = not is_last and _is_apart(scheduler.current_node, scheduler.nodes[place])
        return is_apart or bool(is_ready(self))

    CppScheduling.ready_to_flush = ready_to_flush  # type: ignore[method-assign]


def _is_apart(before: Any, after: Any) -> bool:
    """Whether a loop must not be in the function of the one before it."""
    ties, others = _ties(after), _ties(before)
    are_again = all(tie is not None and tie.meta.get(MADE) for tie in (*ties, *others))
    return any(tie is not None for tie in ties) and not are_again


def _ties(loop: Any) -> list[Node | None]:
    """The ties of what is made in a loop."""
    return [getattr(node.node, _TIE, None) for node in loop.get_nodes()]
