"""Work that is timed by itself: one kernel of its own, one chain, or one use of a codec.

A sample is known by its content (ops, shapes, strides, dtypes, other arguments), so that identical layers and updates
share it. Its inputs are made up: normal numbers, and indices spread over what they index.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from hilore_planner.costs.indices import index_limit
from hilore_planner.costs.layout import Layout, layout_of
from hilore_planner.passes import codecs, compat
from hilore_planner.passes.chains import Chain
from hilore_planner.passes.codecs import Codec
from hilore_planner.passes.cutout import arguments_of, is_tie, module_of
from hilore_planner.passes.ops import one_tensor, op_name, tensor

aten = torch.ops.aten

Step = Callable[[], object]


class Run(Protocol):
    """Work that was readied."""

    def wait(self) -> None:
        """Until it can be called at once."""

    def __call__(self, given: list[Tensor]) -> object:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Something to time.

    Attributes:
        key: digest of the content.
        what: name for people.
        inputs: what it is run on, found out when it is.
        make: readies it to run on such inputs, which may mean compiling it.
        shape_key: digest of the content without strides; empty where there is no such thing.
        eager: runs it on such inputs without compiling it; None where it cannot be run so.
    """

    key: str
    what: str
    inputs: Callable[[], tuple[Layout, ...]]
    make: Callable[[Sequence[Tensor]], Run]
    shape_key: str = ""
    eager: Callable[[Sequence[Tensor]], Step] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """All digests under which it is looked up."""
        return (self.key, self.shape_key) if self.shape_key else (self.key,)


def not_alone(node: Node) -> str:
    """Why an op is not run by itself; empty where it is."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "a higher-order operator"
    if target.namespace not in ("aten", "prims", "hilore"):
        return "a custom operator or collective, which may do more than compute"
    return "it writes to its inputs" if target._schema.is_mutable else ""


def node_sample(node: Node) -> Sample:
    """A kernel of its own, as Inductor calls it; see :func:`not_alone`."""
    inputs = tuple(arg for arg in node.all_input_nodes if tensor(arg) is not None)
    chain, layouts = Chain((node,), inputs, (node,), ()), [layout_of(one_tensor(n)) for n in inputs]
    shapes = [(layout.shape, layout.dtype) for layout in layouts]
    op: Any = _add if node.target is compat.added_mm() else node.target

    def eager(given: Sequence[Tensor]) -> Step:
        args, kwargs = arguments_of(node, dict(zip(inputs, given, strict=True)).__getitem__)
        return functools.partial(op, *args, **kwargs)

    sample = chain_sample(chain)
    if op is _add:
        sample = replace(
            sample, key=_digest(f"in place {sample.key}"), make=lambda _: _Eager(eager)
        )
    return replace(
        sample,
        what=f"{op_name(node)} {', '.join(map(_short, layouts))}",
        shape_key=_digest(f"{_text(chain)} {shapes}"),
        eager=eager,
    )


@dataclass(frozen=True, slots=True)
class _Eager:
    """Runs an operator as it is."""

    step: Callable[[Sequence[Tensor]], Step]

    def wait(self) -> None:
        """Nothing is compiled."""

    def __call__(self, given: list[Tensor]) -> object:
        return self.step(given)()


def _add(total: Tensor, left: Tensor, right: Tensor) -> None:
    """A product added to a total in its own memory, as in a program; scaled, so that the total never grows."""
    compat.add_product(total, left, right, beta=0.5, alpha=0.5 / left.shape[1])


def chain_sample(chain: Chain) -> Sample:
    """A chain, compiled as Inductor compiles it within a program."""
    layouts = [layout_of(one_tensor(node)) for node in chain.inputs]
    names = list(dict.fromkeys(op_name(node) for node in chain.nodes if not is_tie(node)))
    values = [value for node in chain.outputs if (value := tensor(node)) is not None]
    written = [_short(layout_of(value)) for value in values]
    limit = functools.partial(index_limit, chain)
    return Sample(
        key=_digest(f"{_text(chain)} {layouts}"),
        what=f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} -> {', '.join(written[:2])}",
        inputs=lambda: tuple(replace(layout, limit=limit()) for layout in layouts),
        make=lambda given: compat.compile_alone(module_of(chain), given),
    )


def copy_sample(size_bytes: int) -> Sample:
    """Copying a value of this many bytes."""
    layout = Layout((size_bytes // 4,), (1,), torch.float32)
    return _function_sample(f"copy {_short(layout)}", lambda x: x + 1, lambda: (layout,))


def codec_sample(use: Literal["encode", "decode"], codec: Codec, layout: Layout) -> Sample:
    """One use of a codec on a value of this layout, in a kernel of its own."""
    what, content = f"{use} {codec.name} {_short(layout)}", f"{codec!r} {layout} {_codecs_digest()}"
    if use == "encode":
        return _function_sample(what, codec.encode, lambda: (layout,), content)
    return _function_sample(
        what,
        lambda *given: codec.decode(given, layout.dtype),
        lambda: _parts(codec, layout),
        content,
    )


def _parts(codec: Codec, layout: Layout) -> tuple[Layout, ...]:
    """What a copy of a value of this layout is made of."""
    with compat.without_modes():
        value = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="meta")
        return tuple(layout_of(part) for part in codec.encode(value))


def _function_sample(
    what: str,
    function: Callable[..., Any],
    inputs: Callable[[], tuple[Layout, ...]],
    content: str = "",
) -> Sample:
    """A function of tensors, traced and compiled; ``content`` is all else that what it does depends on."""

    def make(given: Sequence[Tensor]) -> Run:
        with compat.without_modes(), FakeTensorMode() as mode:
            traced = compat.trace(function, [mode.from_tensor(value) for value in given])
        _flatten(traced)
        return compat.compile_alone(traced, given)

    return Sample(_digest(f"{what} {content}"), what, inputs, make)


def _flatten(gm: GraphModule) -> None:
    """Take inputs one by one and return a tuple, as Inductor has it."""
    gm.graph.set_codegen(CodeGen())
    output = gm.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    gm.recompile()


@functools.cache
def _codecs_digest() -> str:
    """Of the code of all codecs."""
    folder = Path(str(codecs.__file__)).parent
    return _digest("".join(path.read_text() for path in sorted(folder.rglob("*.py"))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _short(layout: Layout) -> str:
    return repr(layout).partition("@")[0]


def _text(chain: Chain) -> str:
    """The ops of a chain with its values numbered, whatever they are called."""
    index = {node: f"%{place}" for place, node in enumerate(chain.inputs)}
    lines = []
    for node in chain.nodes:
        if is_tie(node):
            index[node] = index[compat.used_by(node)[0]]
            continue
        lines.append(f"{node.target}{_work(node, lambda arg: index.get(arg, ''))}")
        index[node] = f"%{len(chain.inputs) + len(lines)}"
    return "\n".join([*lines, *(index[node] for node in chain.outputs)])


def _work(node: Node, place: Callable[[Node], Any]) -> Any:
    """What an op is given, as far as its time depends on it: where a slice begins does not count."""
    args, kwargs = arguments_of(node, place)
    if node.target is not aten.slice.Tensor:
        return args, kwargs
    dim = args[1] if len(args) > 1 else 0
    return (args[0], dim, compat.hint(one_tensor(node).shape[dim]), *args[4:]), kwargs
