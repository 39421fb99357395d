"""Which codec a unit is kept by, given the codec's name: what reads the unit decides how it is rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node

from hilore_planner.codec_names import DROP, read_tiers
from hilore_planner.passes import compat
from hilore_planner.passes.codecs.base import Codec, Rounding
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3
from hilore_planner.passes.codecs.layout import InMemoryOrder, is_contiguous, memory_order
from hilore_planner.passes.codecs.registry import codec_named
from hilore_planner.passes.masks import COMPARISONS
from hilore_planner.passes.ops import meets_row_sum, tensor
from hilore_planner.passes.units import RecoveryUnit

aten, prims = torch.ops.aten, torch.ops.prims
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_SINGULAR_AT_ZERO: dict[object, int] = {
    aten.div.Tensor: 1,
    aten.div.Tensor_mode: 1,
    aten.reciprocal.default: 0,
    aten.rsqrt.default: 0,
    aten.log.default: 0,
    aten.log2.default: 0,
    aten.log10.default: 0,
    aten.pow.Tensor_Scalar: 0,
    aten.pow.Tensor_Tensor: 0,
}
"""Which argument must not be zero."""
_ZERO_OF_ZERO = frozenset(
    {
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.neg.default,
        aten.abs.default,
        aten.sqrt.default,
        prims.convert_element_type.default,
    }
)


def codec_for(unit: RecoveryUnit, name: str) -> Codec:
    """The codec ``name`` with the rounding and the layout that suit ``unit``.

    Raises:
        OptionError: there is no such codec.
    """
    codec = codec_named(name, rounding_for(unit, name))
    if isinstance(codec, Fp8E4M3) and meets_row_sum(unit.maker):
        # A kernel that sums rows lays out what it reads by groups in another way than the rest, and decodes twice.
        codec = replace(codec, group=WHOLE_ROW)
    value = tensor(unit.maker)
    if value is None or is_contiguous(value):
        return codec
    return InMemoryOrder(codec, memory_order(value))


def offered_codec(unit: RecoveryUnit, name: str, value: Tensor) -> Codec | None:
    """The codec that ``name`` means for a unit of this value; None where the unit may not be kept by it.

    Dropped rows are zeros then, which nothing may divide by.

    Raises:
        OptionError: there is no such codec.
    """
    codec, tiers = codec_for(unit, name), read_tiers(name)
    drops = tiers is not None and tiers.codecs[-1] == DROP
    is_offered = codec.accepts(value) and not (drops and _is_divided_by(unit.maker, set()))
    return codec if is_offered else None


def _is_divided_by(node: Node, seen: set[Node]) -> bool:
    """Whether a value's zeros reach an operation that is singular there."""
    seen.add(node)
    for user in node.users:
        if _is_singular(user, node):
            return True
        is_zero = compat.is_view(user) or user.target in _ZERO_OF_ZERO
        if is_zero and user not in seen and _is_divided_by(user, seen):
            return True
    return False


def _is_singular(user: Node, node: Node) -> bool:
    place = _SINGULAR_AT_ZERO.get(user.target)
    if place is None or user.args[place] is not node:
        return False
    power = user.args[1] if user.target is aten.pow.Tensor_Scalar else None
    return not (isinstance(power, int | float) and power >= 0)


def rounding_for(unit: RecoveryUnit, name: str) -> Rounding:
    """How the codec ``name`` rounds a unit: to the nearest, or stochastically.

    Stochastically where the unit is only multiplied by others, as the input of a linear layer is; backward reads it. A
    product is linear in it, so an error of mean zero stays one. Elsewhere to the nearest, which leaves zeros as they
    are: a function that bends makes a bias of any noise, and a mask made again from it would have lost its zeros.

    In tiers stochastically too, but for what masks are made from. Responses to one prompt have values in common, which
    to the nearest have the same errors: of a whole group those cancel, as its advantages do; of a tier they add up.
    """
    readers = {node.target for node in _readers(unit.maker)}
    if unit.readers and readers <= _PRODUCTS:
        return "stochastic"
    is_tiered = read_tiers(name) is not None
    return "stochastic" if is_tiered and not readers & COMPARISONS else "nearest"


def _readers(node: Node) -> Iterator[Node]:
    """What reads a value or a view of it, in forward and backward."""
    for user in node.users:
        if compat.is_view(user):
            yield from _readers(user)
        else:
            yield user
