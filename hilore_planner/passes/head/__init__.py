"""The language-model head, cut into row chunks so that nothing of vocabulary size is alive whole."""

from hilore_planner.passes.head.match import plan_head
from hilore_planner.passes.head.normalise import normalise_head
from hilore_planner.passes.head.rewrite import rewrite_head
from hilore_planner.passes.head.site import HeadRefusal, HeadSite

__all__ = ["HeadRefusal", "HeadSite", "normalise_head", "plan_head", "rewrite_head"]
