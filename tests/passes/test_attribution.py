from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, Node

from hilore_planner.passes.attribution import attribute, module_path, source_line
from hilore_planner.passes.ops import op_name
from tests.passes.joint import Traced, trace_update
from tests.passes.programs import Stack, seeded


def _named(path: str | None, trace: str = "") -> Node:
    node = Graph().call_function(torch.ops.aten.relu.default)
    if path is not None:
        node.meta["nn_module_stack"] = {"outer": ("L['self']", object), "inner": (path, object)}
    node.meta["stack_trace"] = trace
    return node


@pytest.mark.compat
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, ""),
        ("L['self']", ""),
        ("L['self'].model.layers.3.mlp", "model.layers.3.mlp"),
        ("G['model'].layers[3].mlp", "layers.3.mlp"),
        ("L['self']._modules['head']", "head"),
        ("getattr(L['self'].blocks, '0')", "blocks.0"),
        ("L['fns']['actor'].head", "actor.head"),
    ],
)
def test_the_path_is_that_of_the_innermost_module(path: str | None, expected: str) -> None:
    assert module_path(_named(path)) == expected


def test_the_source_line_is_the_innermost_frame() -> None:
    trace = '  File "/a/train.py", line 3, in f\n  File "/a/b/model.py", line 12, in forward\n'
    assert source_line(_named("", trace)) == "model.py:12"
    assert source_line(_named("")) == ""


@pytest.mark.compat
def test_names_are_unique_and_start_with_module_and_op(stack: Traced) -> None:
    joint = stack.joint()
    origins = attribute(joint.forward)
    names = [origin.name for origin in origins.values()]
    assert len(set(names)) == len(names) == len(joint.forward)
    for node, origin in origins.items():
        assert origin.name.startswith(f"{origin.module}:{op_name(node)}")


@pytest.mark.compat
def test_equal_layers_differ_in_the_index_alone(stack: Traced) -> None:
    origins = list(attribute(stack.joint().forward).values())
    layers = [[o for o in origins if o.layer == index] for index in (0, 1)]
    assert len(layers[0]) == len(layers[1]) > 10
    for first, second in zip(*layers, strict=True):
        assert (first.kind, first.role, first.op) == (second.kind, second.role, second.op)
        assert first.name.replace("layers.0", "layers.1") == second.name
        assert first.kind.startswith("layers.*")
        assert "0" not in first.role.split(".")
    assert {"attention.qkv", "mlp.up", "mlp.norm"} <= {o.role for o in layers[0]}


def test_what_is_in_no_layer_has_none(stack: Traced) -> None:
    outside = [o for o in attribute(stack.joint().forward).values() if o.module == "loss"]
    assert outside
    assert {(o.layer, o.role) for o in outside} == {(None, "loss")}


def test_the_source_is_the_users_line(stack: Traced) -> None:
    sources = [o.source for o in attribute(stack.joint().forward).values() if o.op == "addmm"]
    assert sources
    assert all(source.startswith("programs.py:") for source in sources)


@pytest.mark.compat
def test_names_do_not_depend_on_sizes(stack: Traced) -> None:
    longer = trace_update(seeded(Stack), torch.randn(3, 48, 64))
    names = [[o.name for o in attribute(t.joint().forward).values()] for t in (stack, longer)]
    assert names[0] == names[1]
