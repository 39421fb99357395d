"""A calibrated profile predicts what whole placements do to the gradient of other batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from hilore_planner.calibration.calibrate import calibrate
from hilore_planner.calibration.capture import CapturedUpdate
from hilore_planner.calibration.classes import spread_out
from hilore_planner.calibration.interpret import Change, JointInterpreter
from hilore_planner.calibration.measure import MeasuredBatch
from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.calibration.profile import ClassRisk, RiskProfile
from hilore_planner.calibration.round_trip import change_by
from hilore_planner.errors import OptionError, ProfileError, RegionError
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.exposure import Exposure, exposure
from hilore_planner.grpo.registry import make_loss
from hilore_planner.partitioner import CutSettings
from hilore_planner.passes.codecs import codec_for
from hilore_planner.passes.units import RecoveryGraph
from tests.passes.programs import Block

GRPO = make_loss("trl/grpo")


class Policy(nn.Module):
    """Two layers of attention and MLP, [8, 128, 64], and a policy-gradient loss of 32 choices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(64), Block(64)])
        self.head = nn.Linear(64, 32)

    def forward(self, x: Tensor, chosen: Tensor, advantages: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        log_probs = self.head(x).log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
        batch = LossBatch(advantages=advantages, mask=torch.ones_like(log_probs))
        return GRPO.loss(log_probs, batch)


def batch(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(8, 128, 64, generator=generator),
        torch.randint(0, 32, (8, 128), generator=generator),
        torch.randn(8, generator=generator),
    )


def exposed(given: Any) -> Exposure:
    return exposure(GRPO, LossBatch(advantages=given[2], mask=torch.ones(8, 128)))


@dataclass(frozen=True)
class Calibrated:
    model: Policy
    profile: RiskProfile
    graph: RecoveryGraph
    held_out: MeasuredBatch


@pytest.fixture(scope="module")
def calibrated() -> Iterator[Calibrated]:
    torch._dynamo.reset()
    model = Policy()
    profile = calibrate(model, [batch(seed) for seed in range(4)], exposure=exposed, progress=False)
    captured = CapturedUpdate.of(model, batch(0), CutSettings())
    inputs = captured.inputs(batch(100))
    measured = MeasuredBatch(JointInterpreter.of(captured.graph), inputs, None)
    yield Calibrated(model, profile, captured.graph, measured)
    torch._dynamo.reset()


def _uniform(graph: RecoveryGraph, action: str, *, layer: int | None = None) -> dict[str, str]:
    """``action`` where the profile has a class for it, in one layer or in all; else store."""
    return {
        name: action if unit.can_store and layer in (None, unit.origin.layer) else "store"
        for name, unit in graph.units.items()
    }


def _changes(placement: dict[str, str], known: set[str], graph: RecoveryGraph) -> dict[str, Change]:
    return {
        name: change_by(codec_for(graph.units[name], action.removeprefix("compress:")))
        for name, action in placement.items()
        if action.startswith("compress:") and name in known
    }


@pytest.mark.parametrize("codec", ["int8", "fp8_e4m3", "int4"])
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_the_prediction_holds_on_a_batch_not_seen(
    calibrated: Calibrated, codec: str, layer: int | None
) -> None:
    known = {
        unit.name
        for unit in calibrated.graph.units.values()
        if calibrated.profile.find(calibrated.profile.kept, unit.origin.kind, unit.origin.layer)
    }
    placement = _uniform(calibrated.graph, f"compress:{codec}", layer=layer)
    placement = {n: a if n in known else "store" for n, a in placement.items()}
    measured = calibrated.held_out.share(_changes(placement, known, calibrated.graph)) ** 0.5
    model = CalibratedRisk(calibrated.profile, calibrated.graph)
    predicted = model.typical(placement) ** 0.5
    assert predicted == pytest.approx(measured, rel=0.2)
    assert not model.bounded
    assert measured <= (predicted**2 * calibrated.profile.margin) ** 0.5


def test_recomputing_from_a_smaller_copy_is_charged(calibrated: Calibrated) -> None:
    """The MLP's activation is kept by no codec, but made again from an inexact up-projection."""
    graph, profile = calibrated.graph, calibrated.profile
    ups = [n for n, u in graph.units.items() if "mlp.up:" in n]
    acts = [
        n
        for n, u in graph.units.items()
        if u.can_recompute and any(parent in ups for parent in graph.parents(n))
    ]
    assert len(ups) == 2
    assert acts
    alone = {n: "compress:fp8_e4m3" if n in ups else "store" for n in graph.units}
    both = {**alone, **dict.fromkeys(acts, "recompute")}
    model = CalibratedRisk(profile, graph)
    change = change_by(codec_for(graph.units[ups[0]], "fp8_e4m3"))
    measured = calibrated.held_out
    first = measured.share(dict.fromkeys(ups, change))
    second = measured.share({**dict.fromkeys(ups, change), **dict.fromkeys(acts, "recompute")})
    assert second > 1.5 * first  # it matters
    assert model.typical(alone) ** 0.5 == pytest.approx(first**0.5, rel=0.2)
    assert model.typical(both) ** 0.5 == pytest.approx(second**0.5, rel=0.2)
    unit = graph.units[acts[0]]
    assert model.inexact_risk(unit, ["fp8_e4m3"]) > model.inexact_risk(unit, ["int8"]) > 0


@pytest.fixture(scope="module")
def tiered() -> Iterator[Calibrated]:
    """Calibrated with tiers, on batches whose first two sequences are most exposed."""

    def in_order(seed: int) -> tuple[Tensor, ...]:
        x, chosen, _ = batch(seed)
        return x, chosen, torch.tensor([2.0, 2.0, -0.6, -0.6, -0.6, -0.2, -0.2, -0.2])

    torch._dynamo.reset()
    model = Policy()
    codecs = ["int8", "int4", "int8[:2/8x128]+int4", "bf16[:2/8x128]+int8[:5/8x128]+int4"]
    profile = calibrate(
        model,
        map(in_order, range(3)),
        exposure=exposed,
        options={"codecs": codecs},
        perturbed_batches=2,
        progress=False,
    )
    captured = CapturedUpdate.of(model, in_order(0), CutSettings())
    inputs = captured.inputs(in_order(100))
    measured = MeasuredBatch(JointInterpreter.of(captured.graph), inputs, None)
    yield Calibrated(model, profile, captured.graph, measured)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "codec",
    ["int8[:2/8x128]+int4", "bf16[:2/8x128]+int8", "store[:2/8x128]+int8[:5/8x128]+int4"],
)
def test_tiers_that_were_not_measured_themselves_are_predicted(
    tiered: Calibrated, codec: str
) -> None:
    known = {
        unit.name
        for unit in tiered.graph.units.values()
        if (one := tiered.profile.find(tiered.profile.kept, unit.origin.kind, unit.origin.layer))
        and {"bf16", "int8", "int4"} <= one.errors.keys()
    }
    placement = {n: f"compress:{codec}" if n in known else "store" for n in tiered.graph.units}
    predicted = CalibratedRisk(tiered.profile, tiered.graph).typical(placement) ** 0.5
    measured = tiered.held_out.share(_changes(placement, known, tiered.graph)) ** 0.5
    assert predicted == pytest.approx(measured, rel=0.25)
    assert codec not in tiered.profile.kept[0].gains


def test_a_profile_is_a_file(calibrated: Calibrated, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    calibrated.profile.save(path)
    assert RiskProfile.load(path) == calibrated.profile


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("margin", 0.5, r"`float` >= 1.0 - at `\$.margin`"),
        ("schema", 99, "schema 99; accepted: 1"),
        ("codec", "int8", "unknown field `codec`"),
        ("kept", [{"kind": "a"}], r"missing required field `first_layer` - at `\$.kept\[0\]`"),
    ],
)
def test_a_damaged_profile_is_refused(
    calibrated: Calibrated, tmp_path: Path, field: str, value: object, complaint: str
) -> None:
    path = tmp_path / "profile.json"
    calibrated.profile.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ProfileError, match=complaint):
        RiskProfile.load(path)


def test_no_file_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read risk profile"):
        RiskProfile.load(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"schema": 1')
    with pytest.raises(ProfileError, match="is no risk profile"):
        RiskProfile.load(tmp_path / "cut.json")


def test_a_codec_the_profile_does_not_know_is_refused(calibrated: Calibrated) -> None:
    model = CalibratedRisk(calibrated.profile, calibrated.graph)
    unit = next(u for u in calibrated.graph.units.values() if "mlp.up:" in u.name)
    assert model.risk(unit, "int8") < model.risk(unit, "fp8_e4m3")
    only = msgspec.structs.replace(
        calibrated.profile,
        kept=tuple(
            msgspec.structs.replace(c, errors={"int8": c.errors["int8"]})
            for c in calibrated.profile.kept
        ),
    )
    with pytest.raises(ProfileError, match="not calibrated for codec 'fp8_e4m3'; it knows int8"):
        CalibratedRisk(only, calibrated.graph).risk(unit, "fp8_e4m3")


class _Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(64, 64), kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.kind == "random":
            y = torch.nn.functional.dropout(y, 0.5)
        return y if self.kind == "vector" else y.square().mean()


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [("random", "draws random numbers"), ("vector", "the scalar loss")],
)
def test_updates_that_cannot_be_calibrated(kind: str, complaint: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(RegionError, match=complaint):
        calibrate(_Odd(kind), [(torch.randn(4, 64),)], progress=False)


def test_batches_of_several_shapes_are_refused() -> None:
    torch._dynamo.reset()
    batches = [(torch.randn(4, 64),), (torch.randn(8, 64),)]
    with pytest.raises(RegionError, match=r"a batch is of .*8, 64.*accepted: batches of one shape"):
        calibrate(_Odd(""), batches, progress=False)


def test_no_batch_is_refused() -> None:
    with pytest.raises(OptionError, match="batches is empty"):
        calibrate(_Odd(""), [], progress=False)
    with pytest.raises(OptionError, match="depth_buckets is 0"):
        calibrate(_Odd(""), [], depth_buckets=0)


def test_a_gain_is_that_of_about_the_same_error() -> None:
    """What feeds an exponential acts far out of proportion where its error is large."""
    errors = {"int8": 4e-5, "int6": 6e-4, "int4": 1e-2, "fp8_e4m3": 7e-4}
    gains = {"int4": 1e4, "int6": 50.0, "fp8_e4m3": 60.0}
    found = ClassRisk("q", 0, 1, 2, gains, errors)
    assert [found.gain(codec) for codec in errors] == [50.0, 50.0, 1e4, 60.0]
    assert found.gain_at(5e-4) == 50.0
    assert found.gain_at(7.5e-4) == 60.0
    assert found.gain_at(1.0) == 1e4
    assert found.gain_at(0.0) == 50.0


class Sharp(nn.Module):
    """A softmax of logits of about 30, [8, 128, 64], whose exponentials four bits spoil."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor, chosen: Tensor, advantages: Tensor) -> Tensor:
        exponents = 30 * self.first(x)
        weights = exponents.exp() / exponents.exp().sum(-1, keepdim=True)
        loss: Tensor = (self.second(weights).square().mean((1, 2)) * advantages).mean()
        return loss


def test_what_acts_out_of_proportion_is_measured_with_finer_codecs_and_not_planned_with() -> None:
    torch._dynamo.reset()
    codecs = ["int8", "int6", "int4"]
    batches = [batch(seed) for seed in range(2)]
    model = Sharp()
    profile = calibrate(model, batches, options={"codecs": codecs}, progress=False)
    found = {one.kind: one for one in profile.kept}
    first, second = found["first:addmm"], found["second:addmm"]
    assert first.gains.keys() == set(codecs)
    assert first.gains["int4"] > 3 * first.gains["int8"]
    assert "int4" in first.erratic
    assert "int8" not in first.erratic
    assert second.gains.keys() == {"int4"}
    assert not second.erratic
    risks = CalibratedRisk(profile, CapturedUpdate.of(model, batches[0], CutSettings()).graph)
    unit = risks.graph.units["first:addmm"]
    assert risks.risk(unit, "int4") == 1 > risks.risk(unit, "int8")
    again = risks.graph.units["div"]
    assert risks.inexact_risk(again, ["int8", "int4"]) == 1


def test_what_is_about_as_wrong_as_what_acts_out_of_proportion_does_too() -> None:
    errors, gains = {"int8": 4e-5, "int6": 6e-4, "int4": 1e-2}, {"int6": 50.0, "int4": 1e4}
    found = ClassRisk("q", 0, 1, 2, gains, errors, ("int4",))
    # Nearest is in proportion: from their geometric mean, 2.4e-3, on.
    assert [found.is_erratic(error) for error in (0.0, 2.3e-3, 2.6e-3)] == [False, False, True]


def test_in_half_precision_errors_are_not_magnified_out_of_proportion() -> None:
    """What calibration finds with errors magnified, where it can, is what the error does as it is."""
    torch._dynamo.reset()
    model = Sharp().to(torch.bfloat16)
    x, chosen, advantages = batch(0)
    given = (x.bfloat16(), chosen, advantages.bfloat16())
    profile = calibrate(model, [given], options={"codecs": ["int8"]}, progress=False)
    found = {one.kind: one for one in profile.kept}["first:addmm"]
    captured = CapturedUpdate.of(model, given, CutSettings())
    measured = MeasuredBatch(JointInterpreter.of(captured.graph), captured.inputs(given), None)
    codec = codec_for(captured.graph.units["first:addmm"], "int8")
    share = measured.share({"first:addmm": change_by(codec)})
    assert found.gains["int8"] * found.errors["int8"] == pytest.approx(share, rel=0.2)


def test_codecs_are_tried_on_units_from_the_first_layer_to_the_last() -> None:
    names = [str(layer) for layer in range(10)]
    assert spread_out(names, 4) == ["0", "3", "6", "9"]
    assert spread_out(names[:3], 4) == ["0", "1", "2"]
    assert spread_out([], 4) == []


def test_a_margin_of_a_class_makes_it_dearer_and_its_prediction_the_same(
    calibrated: Calibrated,
) -> None:
    profile = calibrated.profile
    kept = tuple(msgspec.structs.replace(one, margin=4 * one.margin) for one in profile.kept)
    dearer = CalibratedRisk(msgspec.structs.replace(profile, kept=kept), calibrated.graph)
    model = CalibratedRisk(profile, calibrated.graph)
    unit = next(u for u in calibrated.graph.units.values() if "mlp.up:" in u.name)
    assert dearer.risk(unit, "int8") == pytest.approx(4 * model.risk(unit, "int8"))
    placement = {n: "compress:int8" if n == unit.name else "store" for n in calibrated.graph.units}
    assert dearer.typical(placement) == model.typical(placement)
