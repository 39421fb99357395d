"""Wrappers captured from real compilations: caches, dynamic shapes, incoming gradients."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from hilore_planner.errors import RegionError
from hilore_planner.peak import TensorSpec, capture_wrappers, measured_peak_bytes, step_peak
from hilore_planner.peak.measure import cpu_moments
from tests.peak.programs import MeanSquare, Mutating, compiled

pytestmark = pytest.mark.compat


class Scores(nn.Module):
    """Two linears; no loss, so a real gradient comes in."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width, bias=False)
        self.outer = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(torch.tanh(self.inner(x)))
        return out


def test_a_load_from_the_cache_is_captured_like_a_compilation() -> None:
    inputs = [torch.randn(512, 128)]
    with torch._inductor.config.patch({"fx_graph_cache": True}):
        first = compiled(Mutating(), inputs)
        counters.clear()
        second = compiled(Mutating(), inputs)
    gc.collect()  # the first compiled graph, which has the same generated module
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert second.forward.path == first.forward.path
    assert second.backward.path == first.backward.path
    assert second.predicted() == first.predicted()
    assert second.predicted().backward.outputs


def test_nothing_is_captured_outside_the_context() -> None:
    with capture_wrappers() as outer:
        with capture_wrappers() as inner:
            pass
        compiled(Mutating(), [torch.randn(512, 128)])
    after = len(outer)
    compiled(Mutating(), [torch.randn(512, 128)])
    assert (len(inner), len(outer)) == (0, after)
    assert after == 2


@pytest.mark.usefixtures("no_kernels")
def test_every_moment_of_the_backward_is_predicted() -> None:
    """Also when incoming gradients are freed, which differs between torch versions."""
    torch.manual_seed(0)
    model, x = Scores(), torch.randn(512, 128)
    function = torch.compile(model)

    def run() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        scores: torch.Tensor = function(x)
        (scores * 2).sum().backward()  # type: ignore[no-untyped-call]
        return scores

    with capture_wrappers() as wrappers:
        run()
    run()
    model.zero_grad(set_to_none=True)
    forward = next(wrapper for wrapper in wrappers if not wrapper.is_backward)
    backward = next(wrapper for wrapper in wrappers if wrapper.is_backward)
    predicted = step_peak(forward, backward, forward.example_inputs, device="cpu")
    # The sum and its own gradient, 4 bytes each, are alive outside of the compiled region.
    expected = [
        moment.allocated_bytes - predicted.base_bytes + 8 for moment in predicted.backward.moments
    ]
    measured = cpu_moments(run)
    windows = (measured[i : i + len(expected)] for i in range(len(measured)))
    assert expected in list(windows)


@pytest.mark.usefixtures("no_kernels")
def test_sizes_that_were_not_compiled_for_are_predicted_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Scores(), MeanSquare())
    x = torch.randn(384, 128)
    torch._dynamo.mark_dynamic(x, 0)
    region = compiled(model, [x])
    rows = 1000
    other = torch.randn(rows, 128)
    inputs = [
        TensorSpec.of(other)
        if isinstance(spec, TensorSpec) and spec.shape == (384, 128)
        else (rows if spec == 384 else spec)
        for spec in region.forward.example_inputs
    ]
    predicted = step_peak(region.forward, region.backward, inputs, device="cpu")
    function = torch.compile(model)

    def run() -> object:
        model.zero_grad(set_to_none=True)
        loss = function(other)
        loss.backward()
        return loss

    with capture_wrappers() as wrappers:
        run()
    assert not wrappers
    model.zero_grad(set_to_none=True)
    measured = measured_peak_bytes(run, "cpu").added_bytes
    assert predicted.peak_bytes - predicted.base_bytes == measured


@pytest.mark.usefixtures("no_kernels")
def test_wrappers_that_do_not_belong_together_are_refused() -> None:
    region = compiled(Mutating(), [torch.randn(512, 128)])
    with capture_wrappers() as wrappers, torch.no_grad():
        torch.compile(MeanSquare())(torch.randn(512, 128))
    (other,) = wrappers
    with pytest.raises(RegionError, match="do not belong together"):
        step_peak(other, region.backward, other.example_inputs, device="cpu")


@pytest.mark.usefixtures("no_kernels")
def test_incoming_gradients_of_a_wrong_number_are_refused() -> None:
    region = compiled(Mutating(), [torch.randn(512, 128)])
    with pytest.raises(RegionError, match="takes 1 incoming gradients, but 0 are known"):
        step_peak(
            region.forward,
            region.backward,
            region.forward.example_inputs,
            device="cpu",
            tangents=[],
        )
