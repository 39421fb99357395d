"""Small GRPO updates, a partitioner that cuts their head, and what the cut graphs keep alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.head import HeadRefusal, HeadSite, plan_head, rewrite_head

LogProbs = Callable[[Tensor, Tensor, Tensor], Tensor]
Update = Callable[..., Any]


@dataclass
class Cutter:
    """A joint-graph partitioner that cuts the head first; ``chunks`` 0 leaves it whole."""

    chunks: int
    found: list[HeadSite | HeadRefusal] = field(default_factory=list)
    halves: list[tuple[GraphModule, GraphModule]] = field(default_factory=list)

    def __call__(
        self, gm: GraphModule, joint_inputs: Any, **keywords: Any
    ) -> tuple[GraphModule, GraphModule]:
        compat.cse(gm)
        found = plan_head(gm)
        self.found.append(found)
        if self.chunks and isinstance(found, HeadSite):
            rewrite_head(gm, found, self.chunks)
        halves = min_cut_rematerialization_partition(gm, joint_inputs, **keywords)
        self.halves.append(halves)
        return halves

    @property
    def site(self) -> HeadSite:
        (found,) = self.found
        assert isinstance(found, HeadSite), found.reason
        return found

    @property
    def refusal(self) -> HeadRefusal:
        (found,) = self.found
        assert isinstance(found, HeadRefusal)
        return found

    def compiled(self, update: Update, *, dynamic: bool = False) -> Update:
        """``update`` through AOTAutograd with Inductor's decompositions; graphs run by FX."""

        def run(gm: GraphModule, _inputs: Any) -> Any:
            def boxed(inputs: list[Any]) -> Any:
                return gm(*inputs)

            boxed._boxed_call = True  # type: ignore[attr-defined]
            return boxed

        backend = aot_autograd(
            fw_compiler=run,
            bw_compiler=run,
            inference_compiler=run,
            partition_fn=self,
            decompositions=select_decomp_table(),
        )
        torch._dynamo.reset()
        return torch.compile(update, backend=backend, dynamic=dynamic)


@dataclass(frozen=True)
class Batch:
    """Hidden states (B, P+T, D) of which the last T are responses, and what a loss reads."""

    hidden: Tensor
    weight: Tensor
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


def responses(b: Batch) -> Tensor:
    """Something before the head, so that its gradient goes on."""
    return torch.tanh(b.hidden)[:, b.hidden.shape[1] - b.targets.shape[1] :]


def gradients(
    update: Callable[[], Tensor], inputs: list[Tensor], scale: float = 1.0
) -> list[Tensor]:
    loss = update()
    return [loss.detach(), *torch.autograd.grad(loss * scale, inputs)]


def assert_equal_gradients(
    got: list[Tensor], expected: list[Tensor], *, relative: float = 1e-12
) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert (mine - theirs).norm() <= relative * theirs.norm()


def live_elements(gm: GraphModule) -> int:
    """The most elements of one kind alive at once: of values wider than ``D`` per row, by storage."""
    nodes = list(gm.graph.nodes)
    last_use: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            key = compat.storage_key(read) if _is_tensor(read) else None
            if key is not None:
                last_use[key] = index
    alive: dict[int, int] = {}
    most = 0
    for index, node in enumerate(nodes):
        key = compat.storage_key(node) if _is_tensor(node) else None
        if key is not None and node.op == "call_function":
            alive.setdefault(key, node.meta["val"].numel())
        most = max(most, sum(alive.values()))
        alive = {key: size for key, size in alive.items() if last_use[key] > index}
    return most


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def largest_value(gm: GraphModule) -> int:
    """Elements of the largest tensor of a graph that is not an input."""
    made = (node for node in gm.graph.nodes if node.op == "call_function" and _is_tensor(node))
    return max(int(node.meta["val"].numel()) for node in made)
