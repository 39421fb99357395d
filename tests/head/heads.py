"""Small GRPO updates, a partitioner that cuts their head, and what the cut graphs keep alive."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Interpreter, Node

from hilore_planner.passes import compat
from hilore_planner.passes.head import (
    HeadSite,
    normalise_head,
    plan_head,
    rewrite_head,
)

Update = Callable[..., Any]


class Plain:
    """A backend that runs the halves of a joint graph by FX, decomposed and simplified as by Inductor.

    The partitioner gets the joint graph as :func:`plan_head` wants it. ``inputs`` are the real
    inputs of the last forward.
    """

    def __init__(self, chunks: int | None = None) -> None:
        self.chunks = chunks
        self.joint: list[GraphModule] = []
        self.halves: list[tuple[GraphModule, GraphModule]] = []
        self.inputs: list[Any] = []

    def partition(
        self, gm: GraphModule, joint_inputs: Any, **keywords: Any
    ) -> tuple[GraphModule, GraphModule]:
        with V.set_fake_mode(torch._guards.detect_fake_mode(joint_inputs)):
            joint_graph_passes(gm)
        prepare(gm)
        self.joint.append(copy.deepcopy(gm))
        if self.chunks is not None:
            rewrite_head(gm, site(gm), self.chunks)
        with torch._functorch.config.patch(cse=False):  # or what is rebuilt would be kept instead
            halves = min_cut_rematerialization_partition(gm, joint_inputs, **keywords)
        self.halves.append(halves)
        return halves

    def run(self, gm: GraphModule, _inputs: Any) -> Any:
        is_forward = not any("tangents" in n.name for n in gm.graph.nodes if n.op == "placeholder")

        def boxed(inputs: list[Any]) -> Any:
            if is_forward:
                self.inputs = list(inputs)
            return gm(*inputs)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    def compile(self, update: Update, *, dynamic: bool = False) -> Update:
        backend = aot_autograd(
            fw_compiler=self.run,
            bw_compiler=self.run,
            inference_compiler=self.run,
            partition_fn=self.partition,
            decompositions=select_decomp_table(),
        )
        torch._dynamo.reset()
        return torch.compile(update, backend=backend, dynamic=dynamic)


def prepare(gm: GraphModule) -> None:
    """What goes before :func:`plan_head`."""
    compat.cse(gm)
    normalise_head(gm)


def site(gm: GraphModule) -> HeadSite:
    found = plan_head(gm)
    assert isinstance(found, HeadSite), f"{found.reason}: {found.node}"
    return found


@dataclass(frozen=True)
class Joint:
    """A joint graph with real inputs for it, tangents all one."""

    gm: GraphModule
    inputs: list[Any]

    def outputs(self, gm: GraphModule | None = None, scale: float = 1.0) -> list[Any]:
        """Forward outputs and gradients of ``gm`` (this graph, if not given)."""
        gm = self.gm if gm is None else gm
        tangents = [
            torch.full(node.meta["val"].shape, scale, dtype=node.meta["val"].dtype)
            for node in gm.graph.nodes
            if node.op == "placeholder" and compat.is_tangent(node)
        ]
        torch.manual_seed(0)
        with torch.no_grad():
            made = Interpreter(gm).run(*self.inputs, *tangents, enable_io_processing=False)
        return list(made)

    def cut(self, chunks: int) -> GraphModule:
        gm = copy.deepcopy(self.gm)
        rewrite_head(gm, site(gm), chunks)
        return gm


def capture(update: Update) -> Joint:
    """The joint graph of ``update``, as the partitioner of a compiler backend gets it."""
    plain = Plain()
    plain.compile(update)()
    (gm,) = plain.joint
    return Joint(gm, plain.inputs)


@dataclass(frozen=True)
class Batch:
    """Hidden states (B, P+T, D) of which the last T are responses, and what a loss reads."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor


def batch(
    *,
    sequences: int = 2,
    tokens: int = 7,
    prompt: int = 2,
    hidden: int = 8,
    vocabulary: int = 503,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    mask = (torch.rand(sequences, tokens, generator=generator) < 0.8).to(dtype)
    mask[:, 0] = 1
    exact = torch.float64 if dtype is torch.float64 else torch.float32
    return Batch(
        hidden=normal(sequences, prompt + tokens, hidden).requires_grad_(),
        weight=normal(vocabulary, hidden).requires_grad_(),
        bias=normal(vocabulary).requires_grad_(),
        targets=torch.randint(0, vocabulary, (sequences, tokens), generator=generator),
        old=torch.full((sequences, tokens), -6.0, dtype=exact),
        advantages=normal(sequences).to(exact),
        mask=mask.to(exact),
    )


def ppo(logp: Tensor, b: Batch) -> Tensor:
    """Token-level ratios, clipped; mean over sequences of the mean over tokens."""
    ratio = torch.exp(logp - b.old)
    plain = ratio * b.advantages[:, None]
    clipped = ratio.clamp(0.8, 1.2) * b.advantages[:, None]
    return -((torch.minimum(plain, clipped) * b.mask).sum(1) / b.mask.sum(1)).mean()


def gspo(logp: Tensor, b: Batch) -> Tensor:
    """Sequence-level ratios, clipped."""
    ratio = torch.exp(((logp - b.old) * b.mask).sum(1) / b.mask.sum(1))
    return -torch.minimum(ratio * b.advantages, ratio.clamp(0.8, 1.2) * b.advantages).mean()


def logsumexp_gather(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(-1, targets[..., None])[..., 0] - torch.logsumexp(logits, -1)


def log_softmax_gather(logits: Tensor, targets: Tensor) -> Tensor:
    return F.log_softmax(logits, -1).gather(-1, targets[..., None]).squeeze(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return -flat.view(targets.shape)


def logsumexp_of_each(logits: Tensor, targets: Tensor) -> Tensor:
    """As TRL had it, and verl has without flash-attn: one sequence after another."""
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return picked - torch.stack([torch.logsumexp(sequence, -1) for sequence in logits])


def log_softmax_of_each(logits: Tensor, targets: Tensor) -> Tensor:
    """The same for bfloat16, which it keeps."""
    pairs = zip(logits, targets, strict=True)
    return torch.stack([log_softmax_gather(sequence, target) for sequence, target in pairs])


def entropy(logits: Tensor) -> Tensor:
    logs = F.log_softmax(logits, -1)
    return -(logs.exp() * logs).sum(-1)


def responses(b: Batch) -> Tensor:
    """Something before the head, so that its gradient goes on."""
    return torch.tanh(b.hidden)[:, b.hidden.shape[1] - b.targets.shape[1] :]


def assert_close(got: list[Any], expected: list[Any], *, relative: float = 1e-12) -> None:
    """Equal but for rounding, gradient by gradient, in norm."""
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert (mine - theirs).norm() <= relative * theirs.norm()


def wide_alive(gm: GraphModule, vocabulary: int) -> tuple[int, int]:
    """Rows of logits alive at once, at most, and rows of the longest value of them.

    Counted are storages made in the graph of which some view has a dimension of ``vocabulary``; one
    is alive from where it is made to its last reader. A row is ``vocabulary`` elements.
    """
    nodes = [node for node in gm.graph.nodes if _storage(node) is not None]
    inputs = {_storage(node) for node in nodes if node.op == "placeholder"}
    rows: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            if (key := _storage(read)) is not None:
                last_use[key] = index
        key, value = _storage(node), node.meta["val"]
        if key is not None and key not in inputs and vocabulary in value.shape:
            rows[key] = value.untyped_storage().nbytes() // value.itemsize // vocabulary
    alive: set[int] = set()
    most = 0
    for index, node in enumerate(nodes):
        key = _storage(node)
        alive |= {key} & rows.keys() if key is not None else set()
        most = max(most, sum(rows[key] for key in alive))
        alive = {key for key in alive if last_use[key] > index}
    return most, max(rows.values())


def _storage(node: Node) -> int | None:
    return compat.storage_key(node) if isinstance(node.meta.get("val"), Tensor) else None
