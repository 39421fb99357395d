"""The one place that touches torch's private API; tested on torch 2.11 and 2.13.

Everything under ``torch._functorch``, ``torch._inductor`` and ``torch._dynamo`` that this package needs is reached
through a name defined here, so that a new torch release means work in one file.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config as _functorch_config
import torch._functorch.partitioners as _partitioners
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.compile_utils import fx_graph_cse as _fx_graph_cse
from torch._functorch.compile_utils import raise_getitems as _raise_getitems
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch._inductor.fx_utils import get_node_storage
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils._python_dispatch import _disable_current_modes

from hilore_planner.passes.compat_casts import to_bits, to_e4m3
from hilore_planner.passes.compat_compile import (
    WHOLE_COPIES,
    compile_alone,
    compile_graph,
    observe_compiled_graphs,
    rounds_like_eager,
    start_compilers,
)
from hilore_planner.passes.compat_kernels import tile_groups
from hilore_planner.passes.compat_ops import (
    add_product,
    added_mm,
    held_after,
    is_written_out,
    used_by,
    wide_mm,
    write_out,
)

__all__ = [
    "WHOLE_COPIES",
    "CustomPartitionerFn",
    "add_product",
    "added_mm",
    "compile_alone",
    "compile_fx",
    "compile_graph",
    "cse",
    "default_partition",
    "extract_forward_backward",
    "forward_region_end",
    "get_hash_for_files",
    "held_after",
    "hint",
    "is_sym_node",
    "is_written_out",
    "must_save",
    "observe_compiled_graphs",
    "rounds_like_eager",
    "start_compilers",
    "storage_key",
    "tag_forced_saves",
    "tile_groups",
    "to_bits",
    "to_e4m3",
    "used_by",
    "wide_mm",
    "write_out",
]


def uncompiled(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module with a graph and what it refers to, whose code is written only if it is run: that takes long."""
    made = _LazyGraphModule(root, graph)
    made.meta.update(getattr(root, "meta", {}))
    return made


def cse(gm: torch.fx.GraphModule) -> None:
    """Remove dead code and merge equal subexpressions, in place."""
    gm.graph.eliminate_dead_code()
    gm.graph = _fx_graph_cse(gm.graph)


def tag_forced_saves(gm: torch.fx.GraphModule) -> None:
    """Tag what torch itself insists on saving: collectives, effectful ops, sources of backward mutation."""
    _partitioners.force_save_collectives(gm)
    _partitioners.force_save_effectful_ops(gm)
    _partitioners.force_save_bw_mutation_src(gm)


def settle_checkpoint_boundaries(gm: torch.fx.GraphModule) -> None:
    """Values that leave a checkpointed region are saved, as torch's own partitioner has it."""
    settle: Any = _partitioners.cleanup_recompute_tags
    keywords = inspect.signature(settle).parameters
    settle(gm, **({"is_default_partition": False} if "is_default_partition" in keywords else {}))


def must_save(node: torch.fx.Node) -> bool:
    """Whether torch (or the user's selective checkpoint policy) says MUST_SAVE."""
    return node.meta.get("recompute") is torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE


def forward_region_end(nodes: Sequence[torch.fx.Node]) -> int:
    """Index of the last node that belongs to the forward (the rule of torch's default partitioner)."""
    return max(
        index
        for index, node in enumerate(nodes)
        if _partitioners._has_tag_is_forward(node) or _partitioners._is_primal(node)  # type: ignore[attr-defined]
    )


def must_be_in_forward(node: torch.fx.Node) -> bool:
    """Whether a node belongs to the forward wherever it stands: the writing of mutated inputs comes last of all."""
    return bool(_partitioners._has_tag_must_be_in_forward(node))


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether a placeholder is a tangent of the joint graph."""
    return bool(_partitioners._is_tangent(node))  # type: ignore[attr-defined]


def backward_is_empty(gm: torch.fx.GraphModule, num_forward_outputs: int) -> bool:
    """Whether nothing at all has to be computed in backward."""
    outputs: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
    has_gradients = any(out is not None for out in outputs[num_forward_outputs:])
    return not has_gradients and not any(map(is_tangent, gm.graph.find_nodes(op="placeholder")))


def default_partition(
    gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **keywords: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Torch's min-cut partitioner, for regions that are not planned."""
    result: tuple[torch.fx.GraphModule, torch.fx.GraphModule] = (
        _partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **keywords)
    )
    return result


def extract_forward_backward(
    gm: torch.fx.GraphModule,
    saved: Iterable[torch.fx.Node],
    *,
    num_forward_outputs: int,
    static_input_indices: Sequence[int],
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cut a joint graph at ``saved`` and put every backward node right before its first reader."""
    info = _partitioners.classify_nodes(gm, list(static_input_indices), num_forward_outputs)
    values = list(dict.fromkeys(saved))
    forward, backward = _partitioners._extract_fwd_bwd_modules(
        gm,
        [node for node in values if not is_sym_node(node)],
        [node for node in values if is_sym_node(node)],
        num_fwd_outputs=num_forward_outputs,
        static_lifetime_input_nodes=info.static_lifetime_input_nodes,
    )
    backward = _partitioners.reordering_to_mimic_autograd_engine(backward)
    backward = uncompiled(backward, backward.graph)  # its code is written once, not at every change
    forward, backward = _raise_getitems(forward), _raise_getitems(backward)
    forward = _partitioners.thread_graphsafe_rng_from_hops(forward, is_backward=False)
    backward = _partitioners.thread_graphsafe_rng_from_hops(backward, is_backward=True)
    return forward, backward


_STORAGE = "hilore_storage"
"""Metadata key of a value with its storage's identity, which is asked for again and again."""


def storage_key(node: torch.fx.Node) -> int | None:
    """Identity of the storage behind a node's (fake) value; None where it is not one tensor."""
    value = node.meta.get("val")
    found: tuple[object, int | None] | None = node.meta.get(_STORAGE)
    if found is None or found[0] is not value:
        found = node.meta[_STORAGE] = value, get_node_storage(node)
    return found[1]


def hint(size: int | torch.SymInt) -> int:
    """The concrete size a symbolic one was traced with."""
    if isinstance(size, int):
        return size
    node = size.node
    value = node.hint if node.hint is not None else node.shape_env.size_hint(node.expr)
    return int(value)


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether a node picks one output of a multi-output op."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node's operator only looks at its first argument in another way."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


Target = Callable[..., Any]


def mutated_inputs(gm: torch.fx.GraphModule) -> frozenset[torch.fx.Node]:
    """Inputs of a joint graph whose new contents it returns: the runtime overwrites them after the forward.

    Those overwritten inside the graph are the targets of its ``copy_`` nodes.
    """
    described = gm.graph.output_node().meta.get("desc") or ()
    overwritten = {d.mutated_input for d in described if isinstance(d, InputMutationAOTOutput)}
    inputs = gm.graph.find_nodes(op="placeholder")
    return frozenset(node for node in inputs if node.meta.get("desc") in overwritten)


def trace(function: Callable[..., Any], values: Sequence[Any]) -> torch.fx.GraphModule:
    """Trace a function of (fake) tensors to ATen ops that Inductor lowers directly."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    table = select_decomp_table()
    with torch.no_grad():
        traced: torch.fx.GraphModule = make_fx(
            lambda inputs: function(*inputs), decomposition_table=table
        )(list(values))
    return traced


def cache_folder() -> str:
    """Inductor's cache folder; plans of cached graphs are kept beside them."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def mode_options(mode: str) -> dict[str, Any]:
    """Inductor settings behind ``torch.compile(mode=...)``."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, fake and dispatch modes that are active around it do not apply."""
    manager: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return manager


def clear_blas_workspaces() -> None:
    """Free what cuBLAS handles hold of the CUDA caching allocator; they take it again when used."""
    torch._C._cuda_clearCublasWorkspaces()


def backward_frees_tangents() -> bool:
    """Whether a compiled backward can free incoming gradients before it returns.

    2.13 hands them over in a list; in 2.11 autograd's own frame holds them until the end.
    """
    return hasattr(torch.autograd.Function, "boxed_grads_call")


@contextlib.contextmanager
def many_compiled_forms(count: int) -> Iterator[None]:
    """Inside, so many compiled forms of one function may be in use; one more is an error and does not run eagerly."""
    import torch._dynamo.config as dynamo_config

    config: Any = dynamo_config
    with config.patch(recompile_limit=count, fail_on_recompile_limit_hit=True):
        yield


def set_activation_memory_budget(budget: float) -> None:
    """Torch's own planner, for comparison: share of its default saved bytes to keep, 0 to 1."""
    _functorch_config.activation_memory_budget = budget


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The fake-tensor mode that some of ``values`` belong to; None where none is fake."""
    return torch._guards.detect_fake_mode(list(values))


def new_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """A mode in which tensors have shapes and types but no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: contextlib.AbstractContextManager[Any] = FakeTensorMode()
    return mode


def trace_errors() -> tuple[type[Exception], ...]:
    """What Dynamo raises where a program cannot be traced whole, or is wrong."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported, UserError

    return (Unsupported, TorchRuntimeError, UserError)
