"""How Inductor cuts the kernels that encode into blocks: the part of :mod:`compat` that tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import FixedTritonConfig, TritonKernel
from torch._inductor.virtualized import V

from hilore_planner.passes.compat_compile import WHOLE_COPIES

_CODES = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn})
_GROUP = 128
_GROUPS = 16
"""Groups of a block: of eight warps a thread has 8 values, of four 16."""
_kernel_kwargs = InductorChoices.triton_kernel_kwargs


def tile_groups() -> None:
    """Have kernels that encode groups of 128 read each group once, in blocks that suit them.

    Inductor loops over a group where rows are longer, and offers its kernels 4, 16 or 64 groups' values a warp: a
    thread then has the 16 codes that it can write at once, but reads float32, as tables of cosines are, with strides.
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
    if kernel_cls is not TritonKernel or is_decided or not _encodes_groups(features, groups):
        return kwargs
    if not _is_tuned():
        warps = 8 if _reads_tables(features) else 4
        kwargs["fixed_config"] = FixedTritonConfig({"XBLOCK": _GROUPS, "num_warps": warps})
    return {**kwargs, "override_persistent_reduction": True}


def _encodes_groups(features: Any, groups: list[Any]) -> bool:
    """Whether a kernel of a graph with copies makes codes of groups of 128, which lie one after the other."""
    has_copies = all(getattr(config, name) == value for name, value in WHOLE_COPIES.items())
    if not has_copies or torch.version.hip is not None or features.reduction_numel != _GROUP:
        return False
    return set(groups[0]) == {"x", "r0_"} and not _CODES.isdisjoint(map(_dtype, _written(features)))


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


def _written(features: Any) -> Iterator[str]:
    return (dep.name for node in features.scheduler_nodes() for dep in node.read_writes.writes)


def _read(features: Any) -> Iterator[str]:
    return (dep.name for node in features.scheduler_nodes() for dep in node.read_writes.reads)
