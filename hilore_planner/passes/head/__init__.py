"""The language-model head, cut into row chunks so that nothing of vocabulary size is alive whole.

In this order: :func:`normalise_head` and :func:`rewrite_head` change a joint graph, :func:`plan_head`
only looks at it.
"""

from hilore_planner.passes.head.estimate import added_ns, head_flops
from hilore_planner.passes.head.match import plan_head
from hilore_planner.passes.head.normalise import normalise_head
from hilore_planner.passes.head.rewrite import rewrite_head
from hilore_planner.passes.head.site import HeadRefusal, HeadSite, is_chunk_of_logits

__all__ = [
    "HeadRefusal",
    "HeadSite",
    "added_ns",
    "head_flops",
    "is_chunk_of_logits",
    "normalise_head",
    "plan_head",
    "rewrite_head",
]
