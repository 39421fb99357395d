"""What the head analysis finds: a frozen description that the rewrite obeys.

Legend: N rows (tokens, flattened), V vocabulary, D hidden size; *wide* is a value of N·V elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import torch
from torch.fx import Node

Size = int | torch.SymInt

Form = Literal["early", "rebuild"]
"""``early``: logits once, the head's backward inside the forward. ``rebuild``: logits once more in backward."""

ExitKind = Literal["rows", "sum"]
"""How chunks make the whole: ``rows`` are concatenated, ``sum`` are added up."""


class ChunkRows(Enum):
    """Stands in a recipe's arguments where the number of rows of the chunk belongs."""

    SIZE = "rows of this chunk"


HEAD_MARK = "hilore_head"
"""``node.meta`` key of the nodes of a head that is cut already."""

_CHUNK_MARK = "hilore_chunk_of_logits"


def mark_chunk_of_logits(node: Node) -> None:
    """Say of a node of a cut head that it has a chunk's rows and the vocabulary's columns."""
    node.meta[_CHUNK_MARK] = True


def is_chunk_of_logits(node: Node) -> bool:
    """Whether a node of a cut head has a chunk's rows and the vocabulary's columns: more chunks, fewer bytes."""
    return _CHUNK_MARK in node.meta


Domain = Literal["kept", "all"]
"""``all``: the rows of logits of which a slice goes on; ``kept``: those rows, or all if none is cut."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Which dimensions of a value enumerate the rows: ``count`` dimensions from ``axis`` on.

    In a chunk they are one dimension, at ``axis``; a chunk holds kept rows only.
    """

    axis: int
    count: int
    domain: Domain = "kept"


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Logits of shape (``lead``, V) are cut to ``[start:stop]`` in dimension ``dim`` of ``lead``."""

    lead: tuple[Size, ...]
    kept: tuple[Size, ...]
    """``lead`` after the cut."""
    dim: int
    start: Any
    stop: Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as one chunk reads it.

    Without ``rows`` every chunk reads the whole value. With ``spread``, the value is first broadcast
    to this shape. ``merged`` are row dimensions of size one to make one of.
    """

    node: Node
    rows: Rows | None = None
    spread: tuple[Size, ...] = field(default=(), compare=False)
    merged: Rows | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One node's operation on a chunk: operands and :class:`ChunkRows` stand in its arguments.

    ``target`` None means that the chunk of the only operand is the result already.
    """

    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the head and how to do it on a chunk."""

    node: Node
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Exit:
    """A value the rest of the graph reads, put together from all chunks."""

    node: Node
    kind: ExitKind
    rows: Rows | None
    needs_tangent: bool


@dataclass(frozen=True, slots=True)
class ChunkPass:
    """One sweep over the chunks: the steps in program order, and what leaves."""

    steps: tuple[Step, ...]
    exits: tuple[Exit, ...]


@dataclass(frozen=True, slots=True)
class HeadSite:
    """A head, and how to cut it into row chunks.

    ``passes`` holds one sweep in the early form, and the forward's and the backward's sweep in the
    rebuild form; ``why_rebuild`` says what forbids the early form. ``rows`` counts those kept if
    ``cut`` drops some, and ``wide`` are the values of vocabulary size. ``logging_only`` are values
    made of logits for forward outputs that nobody can differentiate: what is kept for their
    gradient would be kept for nothing.
    """

    form: Form
    logits: Node
    rows: Size
    cut: RowSlice | None
    vocabulary: Size
    hidden: Size
    wide: frozenset[Node] = field(repr=False)
    passes: tuple[ChunkPass, ...] = field(repr=False)
    tangent: Node | None
    why_rebuild: str
    logging_only: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class HeadRefusal:
    """Why no head is cut, for people; ``node`` is where in the graph, if anywhere."""

    reason: str
    node: Node | None = None


class NotRowWiseError(Exception):
    """Raised inside the analysis: ``node`` cannot be done on a chunk of rows; never leaves the package."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason
