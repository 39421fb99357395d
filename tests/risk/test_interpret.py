"""Interpreting a joint graph under changes gives what the rewritten graph gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.calibration.interpret import Change, JointInterpreter
from hilore_planner.calibration.round_trip import change_by
from hilore_planner.passes.codecs import codec_for
from hilore_planner.passes.units import RecoveryGraph
from tests.passes.joint import Traced, cut, trace_update
from tests.passes.placements import placements, problem_of
from tests.passes.programs import Stack, seeded


@pytest.fixture(scope="module")
def stack() -> Traced:
    """Two equal layers in float32; 2 x 32 tokens."""
    generator = torch.Generator().manual_seed(1)
    return trace_update(seeded(Stack), torch.randn(2, 32, 64, generator=generator))


def _changes(
    placement: dict[str, str], graph: RecoveryGraph, interpreter: JointInterpreter
) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name, action in placement.items():
        if action.startswith("compress:"):
            changes[name] = change_by(
                codec_for(graph.units[name], action.removeprefix("compress:"))
            )
        elif action == "recompute" and name in interpreter.makers:
            changes[name] = "recompute"
    return changes


@settings(max_examples=8)
@given(data=st.data())
def test_changes_are_what_the_rewriter_does(stack: Traced, data: st.DataObject) -> None:
    graph = stack.units()
    placement = data.draw(placements(problem_of(graph), is_exact=False))
    interpreter = JointInterpreter.of(graph)
    values = interpreter.forward(stack.primals)
    changes = _changes(placement, graph, interpreter)
    anew = dict(interpreter.gradients(values, changes))
    exact = interpreter.reference(values)
    found = dict(interpreter.gradients(values, changes))
    # From where the first backward left values, the same, bit for bit.
    assert found.keys() == anew.keys()
    assert all(torch.equal(found[index], gradient) for index, gradient in anew.items())
    found = exact | found
    _, expected = cut(graph, placement).run(stack)
    (tangent,) = stack.tangents()
    for index, gradient in enumerate(expected):
        if gradient is not None:
            torch.testing.assert_close(found[index] * tangent, gradient, rtol=1e-5, atol=1e-7)


def test_without_changes_the_gradient_is_autograds(stack: Traced) -> None:
    interpreter = JointInterpreter.of(stack.units())
    gradients = interpreter.reference(interpreter.forward(stack.primals))
    model = seeded(Stack)
    torch.autograd.backward(model(next(value for value in stack.primals if value.dim() == 3)))
    expected = {tuple(p.shape): p.grad for p in model.parameters()}
    assert {tuple(g.shape) for g in gradients.values()} == set(expected)
    total = sum(float(g.square().sum()) for g in gradients.values())
    whole = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    assert total == pytest.approx(whole, rel=1e-4)


def test_what_comes_before_the_first_change_is_not_run_again(stack: Traced) -> None:
    interpreter = JointInterpreter.of(stack.units())
    values = interpreter.forward(stack.primals)
    exact = interpreter.reference(values)
    first, last = (
        next(name for name in interpreter.makers if name.startswith(f"layers.{layer}."))
        for layer in (0, 1)
    )
    of_first, of_last = (
        dict(interpreter.gradients(values, {name: torch.zeros_like})) for name in (first, last)
    )
    assert 0 < len(of_first) < len(of_last) <= len(exact)
    assert not any(torch.equal(gradient, exact[index]) for index, gradient in of_first.items())
    left = values.keys() - interpreter.at_hand - set(interpreter.joint.primals)
    assert left <= set(interpreter.joint.backward) | set(interpreter.joint.forward)
    assert left & set(interpreter.joint.backward)


def test_only_what_backward_may_read_is_kept(stack: Traced) -> None:
    interpreter = JointInterpreter.of(stack.units())
    values = interpreter.forward(stack.primals)
    assert values.keys() == interpreter.at_hand | set(interpreter.joint.primals)
