"""Operators of our own, and how Inductor lowers them: the part of :mod:`compat` that writes kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.compat_cpp import start_function

_WRITTEN_OUT = "inductor_realize_to_strides"
"""Inductor's mark of a node whose value is written to memory."""


@functools.cache
def held_after() -> Any:
    """The operator ``held_after(value, anchor)``: the value itself, made no earlier than the anchor.

    Inductor lowers it to an ordering between two kernels and to nothing at run time. The value is then a buffer, laid
    out as in the graph: otherwise a view of it might need a copy. A value that a kernel older than the anchor's has
    made already (a clone that Inductor leaves out) is not tied: that could close a circle. On the CPU a tied value
    starts a function of its own (see :mod:`compat_cpp`).
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    @torch.library.custom_op("hilore::held_after", mutates_args=())
    def op(value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @op.register_fake
    def _(value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value)

    def lowering(value: Any, anchor: Any) -> Any:
        made, before = _kernel_behind(value), _kernel_behind(anchor)
        if not _is_only_joined(V.graph.current_node):
            _lay_out(value, V.graph.current_node.meta["val"])
        if isinstance(made, ir.Operation):
            start_function(made, V.graph.current_node)
        are_kernels = all(isinstance(kernel, ir.Operation) for kernel in (made, before))
        if are_kernels and _is_older(before, made):
            V.graph.additional_buffer_deps[made.get_operation_name()].add(before.get_name())
        return value

    return lowered(torch.ops.hilore.held_after.default, lowering)


def used_by(node: Node) -> list[Node]:
    """Nodes whose values a node uses: its inputs, but not what its value is only held after."""
    return node.all_input_nodes[:1] if node.target is held_after() else node.all_input_nodes


def write_out(node: Node) -> None:
    """Have Inductor write a value to memory as it lies in the graph, whoever reads it."""
    node.meta[_WRITTEN_OUT] = True


def is_written_out(node: Node) -> bool:
    """Whether :func:`write_out` was called for it."""
    return _WRITTEN_OUT in node.meta


@functools.cache
def added_mm() -> Any:
    """The operator ``added_mm(total, left, right)``: ``total + left · right``.

    Inductor lowers it to a product added in ``total``'s own memory, if nothing reads the old total later.

    Shapes: total (M, N), left (M, K), right (K, N), of one dtype, or total float32 and the others of a half; the result
    is rounded to the total's dtype once.
    """
    from torch.utils.flop_counter import mm_flop, register_flop_formula

    @torch.library.custom_op("hilore::added_mm", mutates_args=())
    def op(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (
            total + left @ right
            if total.dtype == left.dtype
            else total + _wide_product(left, right)
        )

    @op.register_fake
    def _(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(total)

    @register_flop_formula(torch.ops.hilore.added_mm)
    def _(total: Any, left: Any, right: Any, *, out_shape: Any = None, **_: Any) -> Any:
        return mm_flop(left, right)

    return lowered(torch.ops.hilore.added_mm.default, _lower_added_mm)


def add_product(
    total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float, alpha: float
) -> None:
    """``beta · total + alpha · left · right`` in ``total``'s own memory: the call that :func:`added_mm` becomes."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=beta, alpha=alpha)
    elif left.is_cuda:
        wide: Any = torch.ops.aten.addmm.dtype_out
        wide(total, left, right, total.dtype, beta=beta, alpha=alpha, out=total)
    else:
        total.addmm_(left.float(), right.float(), beta=beta, alpha=alpha)


@functools.cache
def wide_mm() -> Any:
    """The operator ``wide_mm(left, right)``: the product of half-precision matrices, not rounded to their dtype.

    Shapes: left (M, K), right (K, N); the result is float32.
    """
    from torch.utils.flop_counter import mm_flop, register_flop_formula

    @torch.library.custom_op("hilore::wide_mm", mutates_args=())
    def op(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _wide_product(left, right)

    @op.register_fake
    def _(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.new_empty((left.shape[0], right.shape[1]), dtype=torch.float32)

    @register_flop_formula(torch.ops.hilore.wide_mm)
    def _(left: Any, right: Any, *, out_shape: Any = None, **_: Any) -> Any:
        return mm_flop(left, right)

    return lowered(torch.ops.hilore.wide_mm.default, _lower_wide_mm)


def _wide_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _lower_wide_mm(left: Any, right: Any) -> Any:
    """A library call with a result of another dtype, which only CUDA's has; elsewhere a product of wider copies."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, to_dtype

    aten = torch.ops.aten
    if left.get_device().type != "cuda":
        return lowerings[aten.mm.default](*(to_dtype(x, torch.float32) for x in (left, right)))
    (rows, _), (_, columns) = left.get_size(), right.get_size()
    kernel = ir.ExternKernelOut(
        layout=ir.FixedLayout(left.get_device(), torch.float32, [rows, columns], [columns, 1]),
        inputs=[ir.ExternKernel.realize_input(value) for value in (left, right)],
        constant_args=(torch.float32,),
        python_kernel_name="extern_kernels.mm",
        op_overload=aten.mm.dtype_out,
    )
    return ir.TensorBox.create(kernel)


def _lower_added_mm(total: Any, left: Any, right: Any) -> Any:
    """One library call that reads and writes the total, or a plain ``addmm`` where others need the old total."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings, to_dtype
    from torch._inductor.virtualized import V

    is_wide = total.get_dtype() != left.get_dtype()
    if is_wide and left.get_device().type != "cuda":
        left, right = (to_dtype(value, torch.float32) for value in (left, right))
        is_wide = False
    if not _is_last_reader(V.graph.current_node):
        if is_wide:
            return lowerings[torch.ops.aten.add.Tensor](total, _lower_wide_mm(left, right))
        return lowerings[torch.ops.aten.addmm.default](total, left, right)
    target, *operands = (ir.ExternKernel.realize_input(value) for value in (total, left, right))
    kernel = ir.ExternKernelOut(
        layout=ir.MutationLayoutSHOULDREMOVE(target),
        inputs=[target, *operands],
        constant_args=(torch.float32,) if is_wide else (),
        kwargs={"alpha": 1, "beta": 1},
        python_kernel_name="extern_kernels.addmm",
        ordered_kwargs_for_cpp_kernel=("beta", "alpha"),
        op_overload=torch.ops.aten.addmm.dtype_out if is_wide else torch.ops.aten.addmm.out,
    )
    kernel.output_view = _whole_view(target)  # it has a name of its own, but no memory
    _writers()[target.get_name()] = kernel
    return total


def _is_last_reader(node: Node) -> bool:
    """Whether the total comes from a product of this graph, and whatever else reads it does so before ``node``."""
    root: Any = node.args[0]
    while root.target is held_after():
        root = root.args[0]
    if root.target not in (torch.ops.aten.mm.default, wide_mm(), added_mm()):
        return False
    looks = [root]
    for look in looks:
        for user in look.users:
            if user is node:
                continue
            if user > node:
                return False
            if _is_look(user) and user.args[0] is look:
                looks.append(user)
    return True


def _is_look(node: Node) -> bool:
    """Whether a node's value is another look at its first argument."""
    if node.target in (torch.ops.aten.reshape.default, held_after()):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _whole_view(value: Any) -> Any:
    from torch._inductor import ir

    if isinstance(value, ir.ReinterpretView):
        return value
    return ir.ReinterpretView(data=ir.StorageBox(_buffer_behind(value)), layout=value.get_layout())


def lowered(overload: Any, lowering: Callable[..., Any]) -> Any:
    """The operator, once Inductor knows how to lower it."""
    from torch._inductor.lowering import register_lowering

    register_lowering(overload, type_promotion_kind=None)(lowering)
    return overload


def _buffer_behind(value: Any) -> Any:
    """The buffer a lowered value lives in, made to exist; views are looked through."""
    from torch._inductor import ir

    while not isinstance(value, ir.Buffer):
        if isinstance(value, ir.StorageBox):
            value.realize()
        value = value.data
    return value


def _is_only_joined(tie: Node) -> bool:
    """Whether nothing reads a tied value but ``cat``, into whose result it may be written straight away."""
    readers = [user for user in tie.users if user.target is not held_after() or user.args[0] is tie]
    return all(
        user.target is torch.ops.aten.cat.default
        or (user.target is held_after() and _is_only_joined(user))
        for user in readers
    )


def _lay_out(value: Any, like: torch.Tensor) -> None:
    """Order a lowered value in memory as ``like`` is, where that is still open."""
    from torch._inductor import ir

    if isinstance(value.data, ir.StorageBox):
        buffer = _buffer_behind(value)
        if isinstance(buffer.get_layout(), ir.FlexibleLayout):
            buffer.freeze_layout_with_stride_order(ir.get_stride_order(like.stride()))


def _kernel_behind(value: Any) -> Any:
    """The kernel that has made a lowered value what it is now."""
    from torch._inductor import ir

    buffer = _buffer_behind(value)
    kernel = _writers().get(buffer.get_name(), buffer)
    return kernel.inputs[0] if isinstance(kernel, ir.MultiOutput) else kernel


def _is_older(one: Any, other: Any) -> bool:
    """Whether a kernel was lowered before another: what a kernel reads is older than it."""
    from torch._inductor.virtualized import V

    operations = V.graph.operations
    return bool(operations.index(one) < operations.index(other))


def _writers() -> dict[str, Any]:
    """Of the graph that is being lowered: who last wrote into a buffer, by its name, where that is not who made it."""
    from torch._inductor.virtualized import V

    found: dict[str, Any] = V.graph.__dict__.setdefault("hilore_writers", {})
    return found
