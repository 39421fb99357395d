"""Which codec a unit is kept by, given the codec's name: what reads the unit decides how it is rounded."""

from __future__ import annotations

import torch

from hilore_planner.passes.codecs.base import Codec, Rounding
from hilore_planner.passes.codecs.layout import InMemoryOrder, is_contiguous, memory_order
from hilore_planner.passes.codecs.registry import codec_named
from hilore_planner.passes.ops import tensor
from hilore_planner.passes.units import RecoveryUnit

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def codec_for(unit: RecoveryUnit, name: str) -> Codec:
    """The codec ``name`` with the rounding and the layout that suit ``unit``.

    Raises:
        OptionError: there is no such codec.
    """
    codec = codec_named(name, rounding_for(unit))
    value = tensor(unit.maker)
    if value is None or is_contiguous(value):
        return codec
    return InMemoryOrder(codec, memory_order(value))


def rounding_for(unit: RecoveryUnit) -> Rounding:
    """Stochastic where backward only multiplies the unit by others, as it does the input of a linear layer.

    A product is linear in it, so an error of mean zero stays one. Elsewhere nearest: it has less error, and a function
    that bends makes a bias of any.
    """
    is_linear = bool(unit.readers) and all(node.target in _PRODUCTS for node in unit.readers)
    return "stochastic" if is_linear else "nearest"
