from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.grpo.advantages import (
    OPENRLHF,
    TRL,
    VERL,
    AdvantageScheme,
    group_advantages,
    zero_constant_groups,
)
from tests.grpo.fixtures import load

SCHEMES = {"trl": TRL, "verl": VERL}
ROWS = [row for row in load("advantages")["rows"] if row["rewards"] != "constant"]
NOISY = [row for row in load("advantages")["rows"] if row["rewards"] == "constant"]


def rewards_of(name: str) -> torch.Tensor:
    return torch.tensor(load("advantages")["rewards"][name], dtype=torch.float32)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['framework']}-{r['kind']}-{r['rewards']}")
def test_equals_the_framework(row: dict[str, str]) -> None:
    scale = row["kind"].removeprefix("vectorized-")
    scheme = replace(SCHEMES[row["framework"]], scale=scale)
    theirs = torch.tensor(row["advantages"])
    ours = group_advantages(rewards_of(row["rewards"]), int(row["group_size"]), scheme)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row", NOISY, ids=lambda r: f"{r['framework']}-{r['kind']}")
def test_constant_reward_of_three_tenths_is_zero_advantage(row: dict[str, str]) -> None:
    """The frameworks leave rounding noise (up to 2.9e-2 in verl) where zero is meant."""
    theirs = torch.tensor(row["advantages"])
    assert bool((theirs != 0).any())
    assert bool((zero_constant_groups(theirs, 8) == 0).all())
    for scheme in (TRL, VERL, OPENRLHF):
        assert bool((group_advantages(rewards_of("constant"), 8, scheme) == 0).all())


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_constant_reward_exact_in_binary_is_exactly_zero(reward: float) -> None:
    rewards = torch.full((8,), reward)
    assert bool((group_advantages(rewards, 8, tolerance=0.0) == 0).all())


def test_rewards_an_ulp_apart_are_constant_and_a_thousandth_are_not() -> None:
    rewards = torch.tensor([0.3, 0.1 + 0.2 + 3e-8, 0.3, 0.3])
    assert float(rewards.max() - rewards.min()) > 0
    assert bool((group_advantages(rewards, 4, VERL) == 0).all())
    assert bool((group_advantages(rewards, 4, VERL, tolerance=0.0) != 0).any())
    spread = torch.tensor([0.3, 0.3003, 0.3, 0.3])
    assert bool((group_advantages(spread, 4, VERL) != 0).all())


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=9),
    st.sampled_from([TRL, VERL, OPENRLHF]),
)
def test_groups_by_id_equal_groups_by_size(values: list[float], scheme: AdvantageScheme) -> None:
    rewards = torch.tensor(values * 2)
    ids = torch.tensor([7] * len(values) + [-3] * len(values))
    by_id = group_advantages(rewards, ids, scheme)
    by_size = group_advantages(rewards, len(values), scheme)
    assert bool((by_id == by_size).all())
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        group_advantages(rewards[shuffled], ids[shuffled], scheme),
        by_id[shuffled],
        rtol=1e-4,
        atol=1e-4,
    )


def test_unscored_samples_are_left_out() -> None:
    rewards = torch.tensor([1.0, float("nan"), 3.0, 2.0, float("nan"), float("nan"), 5.0, 5.0])
    found = group_advantages(rewards, 4, replace(TRL, scale="none"))
    assert found.tolist() == [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_lone_sample() -> None:
    rewards, ids = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0, 1, 1])
    assert group_advantages(rewards, ids, TRL)[0] == 0
    assert group_advantages(rewards, ids, replace(VERL, scale="none"))[0] == 2
    assert zero_constant_groups(rewards, ids)[0] == 2


def test_bessels_correction() -> None:
    rewards = torch.tensor([0.0, 2.0], dtype=torch.float64)
    biased = replace(TRL, unbiased=False, epsilon=0.0)
    assert group_advantages(rewards, 2, biased).tolist() == [-1.0, 1.0]
    corrected = group_advantages(rewards, 2, replace(TRL, epsilon=0.0))
    torch.testing.assert_close(corrected, torch.tensor([-1.0, 1.0]).double() / 2**0.5)


@pytest.mark.parametrize("groups", [3, 0, torch.zeros(5)])
def test_groups_that_do_not_fit(groups: int | torch.Tensor) -> None:
    with pytest.raises(OptionError, match="accepted"):
        group_advantages(torch.zeros(8), groups)


def test_options() -> None:
    with pytest.raises(OptionError, match=r"scale is 'rank'; accepted: group, batch, none"):
        AdvantageScheme(scale="rank")
    with pytest.raises(OptionError, match="epsilon"):
        AdvantageScheme(epsilon=-1.0)
