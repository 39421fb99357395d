"""What kind of work an operator is: a view, fusible, or a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from hilore_planner.passes import compat

aten, prims = torch.ops.aten, torch.ops.prims


class OpKind(Enum):
    """How Inductor will run a node."""

    VIEW = "view"
    """Makes no bytes: another look at a storage, or one output of a multi-output op."""
    FUSIBLE = "fusible"
    """Pointwise work, reductions and index arithmetic, fused with its neighbours."""
    EXTERN = "extern"
    """A kernel of its own: matrix products, attention, fallbacks, collectives, custom ops."""


# Fusible work that carries neither the pointwise nor the reduction tag.
_FUSIBLE = frozenset(
    {
        aten.embedding.default,
        aten.gather.default,
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_select.default,
        aten._unsafe_index.Tensor,
        aten._unsafe_index_put.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
        aten.cat.default,
        aten.constant_pad_nd.default,
        aten.full.default,
        aten.full_like.default,
        aten.arange.start_step,
        aten.cumsum.default,
        aten.flip.default,
        aten.repeat.default,
        aten.copy.default,
        aten._softmax.default,
        aten._log_softmax.default,
        aten.scalar_tensor.default,
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.mean.default,
        aten.mean.dim,
        aten.amax.default,
        aten.amin.default,
        aten.argmax.default,
        aten.argmin.default,
        aten.any.default,
        aten.any.dim,
        aten.prod.default,
        aten.var_mean.correction,
        aten.native_layer_norm.default,
        aten.logsumexp.default,
        prims.iota.default,
        prims.convert_element_type.default,
        prims.inductor_seeds.default,
        prims.inductor_seed.default,
        prims.inductor_lookup_seed.default,
        prims.inductor_random.default,
        prims.inductor_randint.default,
    }
)

_REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "argmax", "argmin", "any", "prod"})


def op_name(node: Node) -> str:
    """Short name of a node's operator (``mm``, ``convert_element_type``)."""
    if compat.is_getitem(node):
        source = node.args[0]
        assert isinstance(source, Node)
        return f"{op_name(source)}[{node.args[1]}]"
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).split("::")[-1]
    return str(getattr(target, "__name__", target))


def tensor(node: Node) -> torch.Tensor | None:
    """The fake value of a node that makes one tensor."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def one_tensor(node: Node) -> torch.Tensor:
    """The same of a node that is known to make one."""
    value = tensor(node)
    assert value is not None, f"{node} is not one tensor"
    return value


def is_reduction(node: Node) -> bool:
    """Whether a node folds a dimension away."""
    return op_name(node).split(".")[0] in _REDUCTIONS


def is_random(node: Node) -> bool:
    """Whether replaying the node would draw new random numbers.

    Attention carries the random tag in all its forms; without dropout it is deterministic.
    """
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    return not ("scaled_dot_product" in str(node.target) and _dropout_probability(node) == 0.0)


def _dropout_probability(node: Node) -> float:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for index, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            value = node.args[index] if index < len(node.args) else None
            value = node.kwargs.get("dropout_p", argument.default_value) if value is None else value
            return float(value) if isinstance(value, (int, float)) else math.nan
    return 0.0


def kind_of(node: Node) -> OpKind:
    """Classify a ``call_function`` node of a functional ATen graph."""
    if compat.is_getitem(node) or compat.is_view(node):
        return OpKind.VIEW
    key = compat.storage_key(node)
    if key is not None and any(compat.storage_key(arg) == key for arg in node.all_input_nodes):
        return OpKind.VIEW
    if node.target in _FUSIBLE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return OpKind.FUSIBLE
    if compat.is_sym_node(node):
        return OpKind.VIEW
    return OpKind.EXTERN


def replay_forbidden(node: Node) -> str:
    """Why running the node a second time is not allowed; empty where it is."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "" if compat.is_getitem(node) else "higher-order operator"
    namespace = target.namespace
    if namespace in ("_c10d_functional", "c10d_functional"):
        return "collective"
    if namespace not in ("aten", "prims"):
        return "custom operator"
    if target._schema.is_mutable:
        return "mutates its input"
    if is_random(node):
        return "draws random numbers"
    return ""


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes of the storage behind a (fake) tensor, at the traced sizes."""
    size = value.untyped_storage().nbytes()
    return compat.hint(size)


def flops(node: Node) -> int:
    """Floating-point operations of a matrix product or attention node; 0 for other nodes."""
    if "scaled_dot_product" in str(node.target) or "flex_attention" in str(node.target):
        return _attention_flops(node)
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in flop_registry:
        return 0
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _shape)
    return int(flop_registry[packet](*args, **kwargs, out_val=_shape(node)))


def _attention_flops(node: Node) -> int:
    """Two products forward and five backward, halved where the mask is causal.

    Torch's own counter refuses grouped queries (fewer key heads than query heads). What flex attention's mask leaves
    out is not known here, so all pairs count.
    """
    names = ["query", "key"]
    if isinstance(node.target, torch._ops.OpOverload):
        names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    query, key = given["query"], given["key"]
    assert isinstance(query, Node)
    assert isinstance(key, Node)
    batch, heads, rows, width = (compat.hint(size) for size in query.meta["val"].shape)
    columns = compat.hint(key.meta["val"].shape[-2])
    products = 5 if "backward" in str(node.target) else 2
    pairs = rows * columns // (2 if given.get("is_causal") else 1)
    return 2 * products * batch * heads * pairs * width


def _shape(node: Node) -> Any:
    """What torch's formulas take in place of a tensor: its sizes, symbolic ones at their hints."""
    value = tensor(node)  # nearly always; a walk through nested values is slow
    if value is not None:
        return tuple(map(compat.hint, value.shape))
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda value: tuple(map(compat.hint, value.shape)), node.meta.get("val")
    )


def work_readers(node: Node, kinds: Mapping[Node, OpKind]) -> Iterator[Node]:
    """Who does work on a value, looking through views, or returns it."""
    stack, seen = list(node.users), set[Node]()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if kinds.get(user) is OpKind.VIEW:
            stack.extend(user.users)
        else:
            yield user


def meets_row_sum(node: Node) -> bool:
    """Whether fusible work on a value sums along its last dimension."""
    stack, seen = list(node.users), set[Node]()
    while stack:
        user = stack.pop()
        if user in seen or user.op != "call_function" or kind_of(user) is OpKind.EXTERN:
            continue
        if _sums_rows(user):
            return True
        seen.add(user)
        stack += user.users
    return False


def _sums_rows(node: Node) -> bool:
    dims = node.args[1] if is_reduction(node) and len(node.args) > 1 else None
    value = tensor(node.all_input_nodes[0]) if dims else None
    return value is not None and isinstance(dims, list) and dims in ([-1], [value.dim() - 1])
