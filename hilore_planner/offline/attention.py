"""Attention as another device would run it.

``scaled_dot_product_attention`` is one call in a program and a different operator on each device: torch picks the
operator while it traces, by the device of the inputs. A graph traced with CPU tensors therefore holds the CPU's. The
functions here pick what a CUDA build of torch would pick and call that operator, which traces without a device.

Shapes: B batch, H heads, K key heads, T queries, S keys, D head size; query (B, H, T, D), key and value (B, K, S, D).

Source of the choice: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (which operator accepts what, and in
which order they are tried) and ``aten/src/ATen/native/transformers/attention.cpp`` (how it is called).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import pad, scaled_dot_product_attention

from hilore_planner.passes.devices import AttentionKernel

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The arguments of ``scaled_dot_product_attention``, in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def is_half(self) -> bool:
        return self.query.dtype in (torch.float16, torch.bfloat16)

    @property
    def head_size(self) -> int:
        """The head size that query, key and value share; 0 where they do not."""
        sizes = {int(tensor.shape[-1]) for tensor in self.qkv}
        return sizes.pop() if len(sizes) == 1 else 0

    @property
    def needs_log_sum(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.qkv)

    def bias(self) -> Tensor | None:
        """The mask as something to add to the scores."""
        mask = self.attn_mask
        if mask is None or mask.dtype is not torch.bool:
            return mask
        never = torch.scalar_tensor(-math.inf, dtype=self.query.dtype, device=mask.device)
        return torch.where(mask, 0.0, never)


_Kernel = Callable[[_Call], Tensor | None]
"""Runs a call; None where the operator does not accept it."""


def _cudnn(call: _Call) -> Tensor | None:
    size = call.head_size
    if not call.is_half or not 0 < size <= 128 or size % 8 or call.key.shape[-2] == 1:
        return None
    output: Tensor = aten._scaled_dot_product_cudnn_attention(
        *call.qkv,
        call.bias(),
        call.needs_log_sum,
        call.dropout_p,
        call.is_causal,
        scale=call.scale,
    )[0]
    return output


def _flash(call: _Call) -> Tensor | None:
    size = call.head_size
    is_square = call.query.shape[-2] == call.key.shape[-2]
    if not call.is_half or not 0 < size <= 256 or call.attn_mask is not None:
        return None
    if call.is_causal and not is_square:
        return None
    scale = call.scale if call.scale is not None else 1.0 / math.sqrt(size)
    query, key, value = (pad(tensor, (0, -size % 8)) if size % 8 else tensor for tensor in call.qkv)
    output: Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout_p, call.is_causal, scale=scale
    )[0]
    return output[..., :size] if size % 8 else output


def _efficient(call: _Call) -> Tensor | None:
    size, alignment = call.head_size, 8 if call.is_half else 4
    if not size or size % alignment or call.key.shape[1] != call.query.shape[1]:
        return None
    output: Tensor = aten._scaled_dot_product_efficient_attention(
        *call.qkv,
        _aligned(call),
        call.needs_log_sum,
        call.dropout_p,
        call.is_causal,
        scale=call.scale,
    )[0]
    return output


def _aligned(call: _Call) -> Tensor | None:
    """The bias in the layout the operator wants: rows a multiple of 16 bytes apart, all dimensions there."""
    bias = call.bias()
    if bias is None:
        return None
    count = int(bias.shape[-1])
    multiple = 16 // bias.element_size()
    if count % multiple:
        bias = pad(bias, (0, -count % multiple))[..., :count]
    shape = (*call.query.shape[:2], call.query.shape[-2], call.key.shape[-2])
    return bias.expand(shape)


def _math(call: _Call) -> Tensor:
    output: Tensor = aten._scaled_dot_product_attention_math(
        *call.qkv,
        call.bias(),
        call.dropout_p,
        call.is_causal,
        None,
        scale=call.scale,
        enable_gqa=call.enable_gqa,
    )[0]
    return output


def _first(call: _Call, kernels: tuple[_Kernel, ...]) -> Tensor:
    for kernel in kernels:
        output = kernel(call)
        if output is not None:
            return output
    return _math(call)


def cudnn_first(*args: Tensor, **keywords: object) -> Tensor:
    """Attention as on Hopper and Blackwell, with the cuDNN that comes with torch for CUDA 13."""
    return _first(_Call(*args, **keywords), (_cudnn, _flash, _efficient))  # type: ignore[arg-type]


def flash_first(*args: Tensor, **keywords: object) -> Tensor:
    """Attention as on Ampere and Ada."""
    return _first(_Call(*args, **keywords), (_flash, _efficient))  # type: ignore[arg-type]


_FUNCTIONS: dict[AttentionKernel, Callable[..., Tensor]] = {
    "cudnn": cudnn_first,
    "flash": flash_first,
    "cpu": scaled_dot_product_attention,
}


def set_attention(gm: GraphModule, kernel: AttentionKernel) -> None:
    """Make every attention of a Dynamo graph trace as on a device that prefers ``kernel``, in place."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                if node.target is scaled_dot_product_attention:
                    node.target = _FUNCTIONS[kernel]
            module.recompile()
