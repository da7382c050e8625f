"""Estimators of advantages: each against its formula, on any batch, in any order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_core.algorithms.config import AdvantageConfig, AlgorithmConfig, EstimatorConfig, NormConfig, NormLevel
from areal_core.algorithms.plan import estimator_spec
from areal_core.contract.batch import Batch
from areal_core.contract.errors import UnknownKey
from areal_core.plugins.registry import default_registry
from areal_core.plugins.structure import structure
from areal_torch.testing.batches import batches

from . import oracle
from .cases import columns_of, packed, rows, with_columns

OUTCOME = ["group_mean", "leave_one_out", "reinforce++", "reinforce++_baseline"]


def _estimate(name: str, batch: Batch, rewards: Tensor, **options: Any) -> Tensor:
    estimator: Any = default_registry().build("estimator", name, options)
    found: Tensor = estimator(batch, rewards)
    return found


def _rewards(batch: Batch, seed: int) -> Tensor:
    """Return a reward per generated token, as a KL penalty leaves it; float64 [T]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch.num_tokens, generator=generator, dtype=torch.float64)
    return torch.where(batch.tokens["loss_mask"], noise, 0.0)


@pytest.mark.parametrize("name", OUTCOME)
@settings(max_examples=60, deadline=None)
@given(
    batch=batches(min_groups=1),
    seed=st.integers(0, 99),
    std=st.sampled_from(NormLevel),
    gamma=st.just(0.9),
)
def test_an_estimator_equals_its_formula(name: str, batch: Batch, seed: int, std: NormLevel, gamma: float) -> None:
    """Sequences that generated nothing are in no statistic; the others agree with a loop in plain floats."""
    rewards = _rewards(batch, seed)
    options = {"group_mean": {"std": std.value}, "reinforce++": {"gamma": gamma}}.get(name, {})
    cut = rows(batch, rewards=rewards, mask=batch.tokens["loss_mask"])
    generated = [[r for r, inside in zip(row["rewards"], row["mask"], strict=True) if inside] for row in cut]
    alive = [number for number, row in enumerate(generated) if row]
    groups = batch.sequences["group"].tolist()

    actual = _estimate(name, batch, rewards, **options)

    expected = oracle.estimated(
        name,
        [math.fsum(generated[i]) for i in alive],
        [generated[i] for i in alive],
        [groups[i] for i in alive],
        std=std.value,
        gamma=gamma,
    )
    assert [x for row in expected for x in row] == pytest.approx(
        actual[batch.tokens["loss_mask"]].tolist(), rel=1e-5, abs=1e-5
    )


@pytest.mark.parametrize("name", [*OUTCOME, "gae", "per_turn"])
@settings(max_examples=30, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99), data=st.data())
def test_the_order_of_the_rows_does_not_matter(name: str, batch: Batch, seed: int, data: st.DataObject) -> None:
    """Groups are ids in the data, so a shuffled batch has shuffled advantages."""
    batch = with_columns(batch, seed).with_tokens(rewards=_rewards(batch, seed))
    order = data.draw(st.permutations(range(batch.num_sequences)), label="order")
    other = batch.select(order)

    straight = batch.with_tokens(found=_estimate(name, batch, batch.tokens["rewards"])).select(order)

    found = _estimate(name, other, other.tokens["rewards"])
    mask = other.tokens["loss_mask"]
    assert straight.tokens["found"][mask].tolist() == pytest.approx(found[mask].tolist(), rel=1e-6, abs=1e-6)


def test_published_values() -> None:
    """[1, 0, 0, 0]: leave-one-out 1 and -1/3; group mean alone 3/4 and -1/4, over the biased std 1.732 and -0.577."""
    batch = packed([[1]] * 4)
    rewards = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)

    assert _estimate("leave_one_out", batch, rewards).tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert _estimate("group_mean", batch, rewards, std="none").tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])
    scaled = _estimate("group_mean", batch, rewards, unbiased=False, eps=0.0)
    assert scaled.tolist() == pytest.approx([math.sqrt(3), *3 * [-1 / math.sqrt(3)]])


def test_a_group_without_a_difference_has_no_advantage() -> None:
    """Three tenths add up to something that is no multiple of a tenth, and still nothing is left."""
    batch = packed([[1, 1], [1], [1]])
    rewards = torch.tensor([0.0, 0.1, 0.1, 0.1], dtype=torch.float64)

    for name in ("group_mean", "leave_one_out", "reinforce++_baseline"):
        assert _estimate(name, batch, rewards).tolist() == [0.0] * 4


def test_every_token_of_a_turn_has_the_advantage_of_its_turn() -> None:
    """Two turns, gamma 0.5: the last has the reward, the one before half of it, whatever their lengths."""
    batch = packed([[0, 1, 1, 0, 1, 0], [1, 1]])
    rewards = torch.tensor([0, 0, 0, 0, 1.0, 0, 0, 3.0], dtype=torch.float64)

    assert _estimate("per_turn", batch, rewards, gamma=0.5).tolist() == [0, 0.5, 0.5, 0, 1, 0, 3, 3]


@settings(max_examples=60, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99), lam=st.sampled_from([0.0, 0.7, 1.0]))
def test_turns_are_the_steps_of_gae(batch: Batch, seed: int, lam: float) -> None:
    """With values at the first tokens of turns it is GAE over a sequence of one token per turn."""
    batch, rewards = with_columns(batch, seed), _rewards(batch, seed)
    actual = _estimate("per_turn", batch, rewards, gamma=0.9, lam=lam)

    expected: list[float] = []
    for row in rows(batch, r=rewards, v=batch.tokens["values"].double(), mask=batch.tokens["loss_mask"]):
        turns: list[list[int]] = []
        for t, inside in enumerate(row["mask"]):
            if inside and (t == 0 or not row["mask"][t - 1]):
                turns.append([])
            if inside:
                turns[-1].append(t)
        gains = oracle.advantages(
            [math.fsum(row["r"][t] for t in turn) for turn in turns],
            [row["v"][turn[0]] for turn in turns],
            [True] * len(turns),
            False,
            0.9,
            lam,
        )
        expected += [gain for turn, gain in zip(turns, gains, strict=True) for _ in turn]

    assert expected == pytest.approx(actual[batch.tokens["loss_mask"]].tolist(), rel=1e-9, abs=1e-9)


def test_rewards_are_normalised_once() -> None:
    """Estimators that normalise get rewards as they are; the others the mean and std of their group, as ever."""
    norms = {
        name: AdvantageConfig(estimator=EstimatorConfig(name=name)).reward_norm
        for name in [*OUTCOME, "gae", "per_turn", "mine"]
    }

    group = NormConfig(mean=NormLevel.GROUP, std=NormLevel.GROUP)
    assert norms == {**dict.fromkeys([*OUTCOME, "mine"], NormConfig()), "gae": group, "per_turn": group}
    assert AdvantageConfig().reward_norm == group


def test_group_mean_is_what_the_default_computes() -> None:
    """Without a penalty in the reward, GRPO by its estimator equals GRPO by a norm of rewards and GAE over nothing."""
    batch = packed([[0, 1, 1], [1], [1, 0, 1]], rewards=[1.0, 0.0, 0.25])

    by_norm, _ = columns_of(batch, AdvantageConfig(), max_new_tokens=8)
    by_name, _ = columns_of(batch, AdvantageConfig(estimator=EstimatorConfig(name="group_mean")), max_new_tokens=8)

    assert by_norm.tokens["advantages"].tolist() == by_name.tokens["advantages"].tolist()


def test_gamma_reaches_the_estimators_that_know_it_and_no_other() -> None:
    """A key that would be ignored is refused by its name."""
    config = structure(AlgorithmConfig, {"advantages": {"gamma": 0.9, "estimator": {"name": "leave_one_out"}}})
    spec = estimator_spec(config)

    with pytest.raises(UnknownKey, match="gamma"):
        default_registry().options("estimator", spec.name, spec.options, "algorithm.advantages.estimator.options")
