from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.marks import MADE
from hilore_planner.passes.ops import OpKind, kind_of
from hilore_planner.passes.order import keep_order, sink_free
from hilore_planner.passes.schedule import ON_GPU
from tests.passes.joint import Cut, Traced, cut
from tests.passes.placements import place, prefer, problem_of
from tests.passes.programs import HandMade

pytestmark = pytest.mark.compat

aten = torch.ops.aten


def _everything(gm: GraphModule) -> set[str]:
    return {node.name for node in gm.graph.nodes}


def _ties(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if _is_tie(n)]


def _is_tie(node: Node) -> bool:
    return node.target is compat.held_after()


def test_every_kernel_is_tied_to_the_one_before_it(halves: Cut) -> None:
    for gm in (halves.forward, halves.backward):
        kernels = [
            n for n in gm.graph.nodes if n.op == "call_function" and kind_of(n) is OpKind.EXTERN
        ]
        count = keep_order(gm, _everything(gm))
        ties = _ties(gm)
        assert count == len(ties) > 0
        tied = {tie.args[0] for tie in ties}
        for kernel in kernels:
            outputs = [u for u in kernel.users if compat.is_getitem(u)]
            assert kernel in tied or tied & {*outputs}, f"{kernel} may move"


def test_a_kernel_waits_for_what_is_written_out_before_it(halves: Cut) -> None:
    """Reductions that only the caller reads would else wait, and keep what they read."""
    gm = halves.backward
    keep_order(gm, _everything(gm))
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not _is_tie(n)]
    anchors = {tie.args[1] for tie in _ties(gm)}
    last_kernel = max(i for i, n in enumerate(nodes) if kind_of(n) is OpKind.EXTERN)
    waiting = [
        node for node in nodes[:last_kernel] if kind_of(node) is OpKind.FUSIBLE and _is_given(node)
    ]
    assert waiting
    assert anchors.issuperset(waiting)


def _is_given(node: Node) -> bool:
    """Whether the caller gets a value, through ties and views, and nothing else reads it."""
    users = [u for u in node.users if not (_is_tie(u) and u.args[1] is node)]
    return bool(users) and all(
        u.op == "output" or ((_is_tie(u) or compat.is_view(u)) and _is_given(u)) for u in users
    )


def test_no_tie_repeats_what_a_value_reads(halves: Cut) -> None:
    """It would keep the value from being written over that."""
    for gm in (halves.forward, halves.backward):
        keep_order(gm, _everything(gm))
        for tie in _ties(gm):
            value, anchor = tie.args
            assert isinstance(value, Node)
            assert anchor.op == "placeholder" or anchor not in value.all_input_nodes  # type: ignore[union-attr]


def test_anchors_come_before_what_they_hold_and_the_graph_stays_in_order(halves: Cut) -> None:
    for gm in (halves.forward, halves.backward):
        keep_order(gm, _everything(gm))
        gm.graph.lint()
        order = {node: index for index, node in enumerate(gm.graph.nodes)}
        for tie in _ties(gm):
            value, anchor = tie.args
            assert isinstance(value, Node)
            assert isinstance(anchor, Node)
            assert order[anchor] < order[value] < order[tie]
            assert (
                all(user is tie for user in value.users if order[user] > order[tie]) or value.users
            )


def test_ties_change_no_value(halves: Cut, block: Traced) -> None:
    before = halves.run(block)
    for gm in (halves.forward, halves.backward):
        assert keep_order(gm, _everything(gm))
    tied = halves.run(block)
    for gm in (halves.forward, halves.backward):
        for tie in _ties(gm):
            tie.replace_all_uses_with(tie.args[0])  # type: ignore[arg-type]
            gm.graph.erase_node(tie)
        gm.graph.lint()
    for other in (tied, halves.run(block)):
        for found, expected in zip(other[0] + other[1], before[0] + before[1], strict=True):
            assert (found is None and expected is None) or torch.equal(found, expected)


def test_the_tied_value_is_what_everybody_reads(halves: Cut) -> None:
    keep_order(halves.backward, _everything(halves.backward))
    for tie in _ties(halves.backward):
        value = tie.args[0]
        readers = [user for user in value.users if user.args[0] is value or not _is_tie(user)]  # type: ignore[union-attr]
        assert readers == [tie]


def test_a_value_made_before_its_anchor_is_not_held() -> None:
    """Inductor leaves a clone out: what stands for it is older than the anchor, and the anchor waits for it."""
    held = compat.held_after()

    def update(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = held(torch.sin(states), states)
        product = held(states @ states, first)
        return product, held(first.clone(), product) @ states

    states = torch.randn(16, 16)
    torch._dynamo.reset()
    run = torch.compile(update, options={"fx_graph_cache": False})
    torch.testing.assert_close(run(states), update(states))


def test_where_memory_is_plentiful_less_is_tied(block: Traced) -> None:
    def stored() -> GraphModule:
        graph = block.units()
        return cut(graph, place(problem_of(graph), prefer("store"))).backward

    plentiful, short = stored(), stored()
    assert keep_order(plentiful, frozenset()) < keep_order(short, _everything(short))


@pytest.mark.parametrize(
    ("readers", "on_gpu", "ties"), [(2, False, 1), (1, False, 0), (2, True, 0)]
)
def test_what_is_dear_and_made_again_for_several_is_tied(
    readers: int, on_gpu: bool, ties: int
) -> None:
    """On the CPU Inductor writes it out, though all who read it are fusible and in one step."""
    hand = HandMade()
    x = [hand.input(f"x{i}", 8, 8) for i in range(3)]
    first = hand.call(aten.mm.default, x[0], x[1])
    again = hand.call(aten.mul.Tensor, hand.call(aten.exp.default, x[2]), x[0])
    for node in (again, *again.all_input_nodes[:1]):
        node.meta[MADE] = True
    read = [hand.call(aten.add.Tensor, again, value) for value in (first, x[1])[:readers]]
    total = hand.call(aten.mul.Tensor, read[0], read[-1])
    hand.graph.output((hand.call(aten.mm.default, total, x[1]),))
    gm = GraphModule(torch.nn.Module(), hand.graph)
    gm.meta[ON_GPU] = on_gpu
    keep_order(gm, frozenset())
    assert [tie.args for tie in _ties(gm)] == [(again, first)] * ties


def _own_work(gm: GraphModule) -> list[Node]:
    """What the backward computes itself, in order."""
    return [
        node
        for node in gm.graph.nodes
        if node.op == "call_function" and not node.meta.get(MADE) and not compat.is_view(node)
    ]


@pytest.mark.parametrize("wanted", ["store", "recompute", "compress:int8"])
def test_rebuilt_values_of_inputs_alone_stand_right_before_their_first_reader(
    block: Traced, wanted: str
) -> None:
    graph = block.units()
    result = cut(graph, place(problem_of(graph), prefer(wanted, "store")))
    before, planned = result.run(block), _own_work(result.backward)
    sink_free(result.backward)
    result.backward.graph.lint()
    assert _own_work(result.backward) == planned
    for found, expected in zip(result.run(block)[1], before[1], strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)
    nodes = list(result.backward.graph.nodes)
    free = {node for node in nodes if node.op == "placeholder"}
    for node in nodes:
        is_call = node.op == "call_function" and kind_of(node) is not OpKind.EXTERN
        if is_call and free.issuperset(node.all_input_nodes):
            free.add(node)
    for index, node in enumerate(nodes):
        readers = [nodes.index(user) for user in node.users if user.op != "output"]
        is_moved = bool(node.meta.get(MADE)) or compat.is_view(node)
        if node in free and is_moved and readers:
            assert free.issuperset(nodes[index + 1 : min(readers)])
