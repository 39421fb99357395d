"""How Inductor cuts the kernels that encode into blocks: the part of :mod:`compat` that tiles."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import FixedTritonConfig, TritonKernel
from torch._inductor.virtualized import V

from hilore_planner.passes.compat_compile import WHOLE_COPIES

_CODES = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn})
_GROUP = 128
_LONGEST_ROW = 4096
"""Rows that a block of eight warps holds, with room for what it makes of them."""
_OF_TABLES, _OF_ONE, _OF_SEVERAL = (4, 2), (8, 2), (16, 4)
"""Groups and warps of a block that reads tables, that encodes one value, and several. Measured on an H200 between
products, where power limits its clock: 26, 14 and 175 us where Inductor's own choice takes 37, 14 and 178."""
_kernel_kwargs = InductorChoices.triton_kernel_kwargs


def tile_groups() -> None:
    """Have kernels that encode read each group once, and those of groups of 128 in blocks that suit them.

    Inductor loops over a group where rows are longer, and tries blocks of 1, 8 and 32 groups for two warps. Of 8, a
    thread has the 16 codes that it can write at once, but reads float32, as tables of cosines are, with strides.
    Only graphs compiled with :data:`WHOLE_COPIES` are concerned, and NVIDIA devices; an update compiled with
    ``max_autotune`` finds its own blocks.
    """
    InductorChoices.triton_kernel_kwargs = _tiled  # type: ignore[method-assign]


def _tiled(
    self: InductorChoices,
    kernel_cls: type[TritonKernel],
    features: Any,
    groups: list[Any],
    kernel_kwargs: dict[str, Any],
) -> dict[str, Any]:
    kwargs = _kernel_kwargs(self, kernel_cls, features, groups, kernel_kwargs)
    is_decided = "override_persistent_reduction" in kwargs
    if kernel_cls is not TritonKernel or is_decided or not _encodes(features, groups):
        return kwargs
    if features.reduction_numel == _GROUP and not _is_tuned():
        count, warps = _block(features)
        kwargs = {
            **kwargs,
            "fixed_config": FixedTritonConfig({"XBLOCK": count, "num_warps": warps}),
        }
    return {**kwargs, "override_persistent_reduction": True}


def _encodes(features: Any, groups: list[Any]) -> bool:
    """Whether a kernel of a graph with copies makes codes of groups of 128 or of rows, whose values lie together."""
    has_copies = all(getattr(config, name) == value for name, value in WHOLE_COPIES.items())
    if not has_copies or torch.version.hip is not None or set(groups[0]) != {"x", "r0_"}:
        return False
    is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, _LONGEST_ROW)
    is_long = V.graph.sizevars.statically_known_geq(features.reduction_numel, _GROUP)
    return bool(is_short and is_long) and _count_encoded(features) > 0


def _block(features: Any) -> tuple[int, int]:
    if _reads_tables(features):
        return _OF_TABLES
    return _OF_ONE if _count_encoded(features) == 1 else _OF_SEVERAL


def _count_encoded(features: Any) -> int:
    """How many tensors of codes it writes."""
    return sum(_dtype(name) in _CODES for name in _written(features))


def _is_tuned() -> bool:
    """Whether Inductor has to find blocks itself, or writes code that asks for those of every dimension."""
    by_itself = config.max_autotune or config.max_autotune_pointwise
    return bool(by_itself or config.triton.use_block_ptr or config.triton.use_tensor_descriptor)


def _reads_tables(features: Any) -> bool:
    """Whether it reads float32 of more numbers than there are groups: not only figures of rows."""
    return any(
        _dtype(name) == torch.float32 and _is_more(V.graph.get_numel(name), features.numel)
        for name in _read(features)
    )


def _is_more(numel: Any, groups: Any) -> bool:
    return bool(V.graph.sizevars.statically_known_gt(numel, groups))


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = V.graph.get_dtype(name)
    return dtype


def _written(features: Any) -> set[str]:
    return {dep.name for node in features.scheduler_nodes() for dep in node.read_writes.writes}


def _read(features: Any) -> set[str]:
    return {dep.name for node in features.scheduler_nodes() for dep in node.read_writes.reads}
