"""How Inductor lays out kernels around smaller copies: the part of :mod:`compat` that chooses in its place.

A value's groups are short rows, in which Inductor's rules for whole rows do badly. What is changed here makes kernels
faster or slower and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.custom_graph_pass import get_hash_for_files
from torch._inductor.virtualized import V

_LONGEST_GROUP = 128
_COSTLY = frozenset({"cos", "sin"})
"""Operations whose kernels have no registers left for anything else."""


class GroupChoices(InductorChoices):
    """Inductor's own choices, but for kernels that go over groups of up to 128 values."""

    def uuid(self) -> str:
        """Part of Inductor's cache key: changes with this file."""
        return f"hilore groups {get_hash_for_files((__file__,)).hex()}"

    @staticmethod
    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        """A group is read once and stays in registers, also where something else is read across groups."""
        from torch._inductor.runtime.hints import ReductionHint

        is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, _LONGEST_GROUP)
        is_mixed = features.get_reduction_hint() == ReductionHint.DEFAULT
        return (is_short and is_mixed and not cooperative_reduction) or (
            InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
        )

    @staticmethod
    def can_fuse_vertical(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
        """What takes many registers for a value by itself does not also wait for the largest of a group."""
        if node2.is_reduction() and not node1.is_reduction() and _is_costly(node1):
            return False
        return InductorChoices.can_fuse_vertical(scheduler, node1, node2, shared_data_score)

    def triton_kernel_kwargs(
        self, kernel_cls: Any, features: Any, groups: list[Any], kernel_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Pointwise work over groups is laid out by groups: what belongs to one is read once for all its values."""
        shape = _groups_of(features)
        if shape is not None:
            rest = {name: size for name, size in groups[0].items() if name not in "xyz"}
            groups[0] = type(groups[0])({"y": shape[0], "x": shape[1], **rest})
            kernel_kwargs = {**kernel_kwargs, "tiling_scores": None}
        return super().triton_kernel_kwargs(kernel_cls, features, groups, kernel_kwargs)


def _is_costly(node: Any) -> bool:
    bodies = (getattr(each, "_body", None) for each in node.get_nodes())
    return any(not _COSTLY.isdisjoint(body.op_counts) for body in bodies if body is not None)


def _groups_of(features: Any) -> tuple[Any, Any] | None:
    """How many groups of how many values all of a pointwise kernel's work goes over; None where that is not so."""
    if features.is_reduction():
        return None
    shapes = {tuple(node.get_ranges()[0]) for node in features.scheduler_nodes()}
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    is_groups = len(shape) == 2 and V.graph.sizevars.statically_known_leq(shape[1], _LONGEST_GROUP)
    return shape if is_groups and shape[1] % 32 == 0 else None


@contextlib.contextmanager
def chosen_by(patches: Mapping[str, Any]) -> Iterator[None]:
    """Inside, Inductor's choices are those of the setting ``inductor_choices_class``.

    Inductor by itself looks at the setting once in a process.
    """
    choices = patches.get("inductor_choices_class")
    if choices is None:
        yield
        return
    with V.set_choices_handler(choices()):
        yield
