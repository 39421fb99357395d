"""What slows an update whatever is planned, found in its joint graph.

Times are what the fault costs at least, by roofline: arithmetic or traffic that the remedy saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from hilore_planner.advice import Advice
from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.devices import DeviceProfile
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import OpKind, flops, kind_of, storage_bytes, tensor
from hilore_planner.passes.schedule import roofline_bytes

aten = torch.ops.aten

_HALF = (torch.bfloat16, torch.float16)
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_CAST = torch.ops.prims.convert_element_type.default
_SMALL_BYTES = 64 * 1024
"""Values below this cost nothing worth a word."""
_SCORE_PASSES = 11
"""Times that unfused attention reads or writes a matrix of scores: 4 in forward (made, read, weights made, read), 7 in
backward (weights read; their gradient made, read with the weights; the scores' gradient made, read twice)."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One place of a fault."""

    node: Node
    size_bytes: int
    time_ns: int


def find_faults(joint: JointGraph, profile: DeviceProfile, vocabulary: int) -> tuple[Advice, ...]:
    """Look for what is known to slow updates; the costliest first.

    Args:
        joint: the update's graph.
        profile: rates of the device.
        vocabulary: rows of the token embedding; 0 where there is none.
    """
    search = _Search(joint, profile, vocabulary)
    found = [
        _advice("attention with an explicit mask", search.masks(), _MASK_REMEDY),
        _advice("attention that is not fused", search.scores(), _SCORES_REMEDY),
        _advice("logits multiplied in fp32", search.logits(), _LOGITS_REMEDY),
        _advice("a copy of the head's weight", search.copies(), _COPY_REMEDY),
        _advice("a norm multiplied by its weight in fp32", search.norms(), _NORM_REMEDY),
    ]
    return tuple(sorted((a for a in found if a is not None), key=lambda a: -(a.time_ns or 0)))


_MASK_REMEDY = (
    "where it is plain causal attention, pass is_causal=True and no mask; transformers builds one as soon as it is "
    'compiled, unless attention_mask={"full_attention": None} is passed or sdpa is registered with its '
    "AttentionInterface under another name"
)
_SCORES_REMEDY = "call torch.nn.functional.scaled_dot_product_attention, or attn_implementation='sdpa' in transformers"
_LOGITS_REMEDY = (
    "multiply in the dtype of the weights and convert after: (hidden @ weight.t()).float()"
)
_COPY_REMEDY = (
    "use the weight as it is (hidden @ weight.t()), and keep it in the dtype it is used in"
)
_NORM_REMEDY = "keep the norm's weight in the dtype of the activations, or convert to that before multiplying by it"


def _advice(what: str, places: Iterable[_Place], remedy: str) -> Advice | None:
    places = list(places)
    if not places:
        return None
    return Advice(
        what=what,
        source=source_line(places[0].node),
        count=len(places),
        size_bytes=sum(place.size_bytes for place in places),
        time_ns=sum(place.time_ns for place in places),
        remedy=remedy,
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """One method for each fault."""

    joint: JointGraph
    profile: DeviceProfile
    vocabulary: int

    def masks(self) -> Iterator[_Place]:
        """A mask makes attention compute what causal attention would skip: half of it, in forward and backward."""
        seen: set[int | None] = set()
        backward = sum(
            self._masked_ns(node) for node in self.joint.backward if _mask(node) is not None
        )
        forward = [node for node in self.joint.forward if _mask(node) is not None]
        for node in forward:
            mask = _mask(node)
            value = tensor(mask) if mask is not None else None
            key = compat.storage_key(mask) if mask is not None else None
            size = 0 if key in seen or value is None else storage_bytes(value)
            seen.add(key)
            yield _Place(node, size, self._masked_ns(node) + backward // len(forward))

    def scores(self) -> Iterator[_Place]:
        """A softmax between two products of the same rows and columns."""
        for node in self.joint.forward:
            if node.target not in (aten.bmm.default, aten.baddbmm.default):
                continue
            weights = node.args[-2] if node.target is aten.bmm.default else node.args[1]
            if isinstance(weights, Node) and _is_softmax_of_product(weights):
                value = tensor(weights)
                assert value is not None
                size = roofline_bytes(value)
                yield _Place(node, size, self._move_ns(_SCORE_PASSES * size))

    def logits(self) -> Iterator[_Place]:
        """A product as wide as the vocabulary, in fp32 though what it is made of was converted to that."""
        half, single = self.profile.half_flops_per_second, self.profile.single_flops_per_second
        for node in self.joint.forward:
            value = tensor(node)
            if node.target not in _PRODUCTS or value is None or value.dtype != torch.float32:
                continue
            is_logits = self.vocabulary > 0 and compat.hint(value.shape[-1]) == self.vocabulary
            if is_logits and any(_is_converted(arg) for arg in node.all_input_nodes):
                slower = 1e9 * flops(node) * (1 / single - 1 / half)
                # The gradients of both operands are products of the same size.
                yield _Place(node, roofline_bytes(value), round(3 * slower))

    def copies(self) -> Iterator[_Place]:
        """The head's weight written out once more, as it is or in another dtype."""
        weights = {
            node
            for node in self.joint.static_inputs
            if (value := tensor(node)) is not None
            and value.dim() == 2
            and self.vocabulary > 0
            and compat.hint(value.shape[0]) == self.vocabulary
        }
        for node in self.joint.forward:
            value = tensor(node)
            if value is None or kind_of(node) is not OpKind.FUSIBLE:
                continue
            source = _through_views(node.all_input_nodes[0]) if node.all_input_nodes else None
            is_copy = len(node.all_input_nodes) == 1 and source in weights
            if is_copy and _is_read_by_product(node):
                read = tensor(source) if source is not None else None
                moved = roofline_bytes(value) + (roofline_bytes(read) if read is not None else 0)
                yield _Place(node, storage_bytes(value), self._move_ns(moved))

    def norms(self) -> Iterator[_Place]:
        """An activation multiplied in fp32 by a weight of one dimension, and converted to half precision after."""
        static = set(self.joint.static_inputs)
        for node in self.joint.forward:
            value = tensor(node)
            if node.target is not aten.mul.Tensor or value is None:
                continue
            size = roofline_bytes(value)
            is_wide = value.dtype == torch.float32 and size >= _SMALL_BYTES
            weights = [_through_views(arg) for arg in node.all_input_nodes]
            has_weight = any(w in static and _dim(w) == 1 and _dim(node) > 1 for w in weights)
            if is_wide and has_weight and any(_is_narrowing(user) for user in node.users):
                # Written and read in four bytes an element where two would do.
                yield _Place(node, size, self._move_ns(size))

    def _move_ns(self, size_bytes: float) -> int:
        return round(1e9 * size_bytes / self.profile.bytes_per_second)

    def _masked_ns(self, node: Node) -> int:
        value = next(v for arg in node.all_input_nodes if (v := tensor(arg)) is not None)
        return round(1e9 * flops(node) / 2 / self.profile.flops_per_second(value.dtype))


def _mask(node: Node) -> Node | None:
    """The mask given to an attention operator, where it has a row for each query."""
    if "scaled_dot_product" not in str(node.target):
        return None
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    mask = given.get("attn_mask", given.get("attn_bias"))
    return mask if isinstance(mask, Node) and _dim(mask) >= 2 else None


def _is_softmax_of_product(node: Node) -> bool:
    """Whether walking back over values of this size leads through an exponential to a product."""
    size = _elements(node)
    stack, seen, has_exponential, has_product = [node], {node}, False, False
    while stack:
        current = stack.pop()
        if current.target in (aten.bmm.default, aten.baddbmm.default):
            has_product = True
            continue
        has_exponential |= current.target in (aten.exp.default, aten._softmax.default)
        for arg in current.all_input_nodes:
            if arg not in seen and _elements(arg) == size and arg.op == "call_function":
                seen.add(arg)
                stack.append(arg)
    return has_exponential and has_product


def _elements(node: Node) -> int:
    value = tensor(node)
    if value is None:
        return -1
    count = 1
    for extent in value.shape:
        count *= compat.hint(extent)
    return count


def _through_views(node: Node) -> Node:
    while node.op == "call_function" and kind_of(node) is OpKind.VIEW and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_converted(node: Node) -> bool:
    """Whether a value of half precision was converted to make this one."""
    source = _through_views(node)
    if source.target is not _CAST:
        return False
    value = tensor(source.all_input_nodes[0])
    return value is not None and value.dtype in _HALF


def _is_narrowing(node: Node) -> bool:
    value = tensor(node)
    return node.target is _CAST and value is not None and value.dtype in _HALF


def _is_read_by_product(node: Node) -> bool:
    return any(
        user.target in _PRODUCTS or (kind_of(user) is OpKind.VIEW and _is_read_by_product(user))
        for user in node.users
        if user.op == "call_function"
    )


def _dim(node: Node) -> int:
    value = tensor(node)
    return -1 if value is None else value.dim()
