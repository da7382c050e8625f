"""Advantages on packed batches: order of steps, gaps, truncation, purity."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from areal_algorithms.estimators.gae import gae
from areal_core.algorithms.config import (
    AdvantageConfig,
    KLConfig,
    KLEstimator,
    NormConfig,
    NormLevel,
    OverlongConfig,
)
from areal_core.algorithms.sums import means
from areal_core.contract.batch import STOP_CODES, Batch
from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError
from areal_torch.testing.batches import assert_same_batch, batches

from . import oracle
from .cases import columns_of, packed, rows, with_columns

PLAIN = AdvantageConfig(reward_norm=NormConfig())
LENGTH, STOP = StopReason.LENGTH, StopReason.STOP


def _advantages(batch: Batch, config: AdvantageConfig = PLAIN, max_new_tokens: int = 16) -> list[float]:
    return columns_of(batch, config, max_new_tokens=max_new_tokens)[0].tokens["advantages"].tolist()


@settings(max_examples=150, deadline=None)
@given(
    batch=batches(min_groups=1),
    seed=st.integers(0, 99),
    gamma=st.sampled_from([0.5, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_gae_equals_the_oracle(batch: Batch, seed: int, gamma: float, lam: float) -> None:
    """The packed, loop-free form agrees with a backward walk over every token of every sequence."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, batch.num_tokens, generator=generator, dtype=torch.float64)
    truncated = torch.rand(batch.num_sequences, generator=generator) < 0.5

    actual = gae(batch, rewards, values, truncated, gamma=gamma, lam=lam)

    expected = [
        value
        for row, cut in zip(
            rows(batch, rewards=rewards, values=values, mask=batch.tokens["loss_mask"]), truncated.tolist(), strict=True
        )
        for value in oracle.advantages(row["rewards"], row["values"], row["mask"], cut, gamma, lam)
    ]
    assert expected == pytest.approx(actual.tolist(), rel=1e-9, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99), estimator=st.sampled_from(list(KLEstimator)))
def test_the_whole_pipeline_equals_the_oracle(batch: Batch, seed: int, estimator: KLEstimator) -> None:
    """Penalty, scale, clip, truncation, norm, KL, placement, GAE and advantage norm, in the documented order."""
    batch = with_columns(batch, seed)
    config = AdvantageConfig(
        reward_bias=0.25,
        reward_scale=2.0,
        reward_clip=1.5,
        overlong=OverlongConfig(tokens=3, factor=0.5),
        reward_norm=NormConfig(mean=NormLevel.GROUP, std=NormLevel.BATCH),
        advantage_norm=NormConfig(mean=NormLevel.BATCH, std=NormLevel.BATCH),
        kl=KLConfig(coefficient=0.1, estimator=estimator),
        gamma=0.9,
        lam=0.8,
        zero_truncated=True,
    )

    actual = columns_of(batch, config, max_new_tokens=5)[0]

    sequences = rows(
        batch,
        mask=batch.tokens["loss_mask"],
        values=batch.tokens["values"],
        policy=batch.tokens["logprobs"].double(),
        reference=batch.tokens["reference_logprobs"].double(),
    )
    cut = [STOP_CODES[code] in (StopReason.LENGTH, StopReason.ABORTED) for code in batch.sequences["stop_reason"]]
    shaped = []
    for row, reward, truncated in zip(sequences, batch.sequences["reward"].tolist(), cut, strict=True):
        over = (sum(row["mask"]) - (5 - 3)) / 3
        reward += -0.5 * max(0.0, min(1.0, over))
        reward = max(-1.5, min(1.5, (reward + 0.25) * 2.0))
        shaped.append(0.0 if truncated else reward)
    alive = [any(row["mask"]) for row in sequences]
    groups = batch.sequences["group"].tolist()
    options = {"leave_one_out": False, "unbiased": True, "eps": 1e-4}
    final = oracle.normalized(shaped, groups, alive, mean="group", std="batch", **options)
    raw, returns = [], []
    for row, reward, truncated in zip(sequences, final, cut, strict=True):
        inside = [t for t, bit in enumerate(row["mask"]) if bit]
        paid = [
            -0.1 * oracle.kl(p, r, estimator.value) if bit else 0.0
            for p, r, bit in zip(row["policy"], row["reference"], row["mask"], strict=True)
        ]
        if inside:
            paid[inside[-1]] += reward
        one = oracle.advantages(paid, row["values"], row["mask"], truncated, 0.9, 0.8)
        raw += one
        returns += [a + v if bit else 0.0 for a, v, bit in zip(one, row["values"], row["mask"], strict=True)]
    mask = batch.tokens["loss_mask"].tolist()
    expected = oracle.normalized(raw, [0] * len(raw), mask, mean="batch", std="batch", **options)
    assert returns == pytest.approx(actual.tokens["returns"].tolist(), rel=1e-4, abs=1e-5)
    if sum(mask) == 1 or len({round(a, 6) for a, bit in zip(raw, mask, strict=True) if bit}) > 1:
        assert expected == pytest.approx(actual.tokens["advantages"].tolist(), rel=1e-3, abs=1e-4)


def test_a_gap_carries_the_reward_to_the_turn_before() -> None:
    """Mask [0,0,1,1,0,1], no values: every generated token gets the whole reward, the gap none."""
    assert _advantages(packed([[0, 0, 1, 1, 0, 1]])) == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("length", [4_097, 40_000])
def test_a_reward_reaches_the_first_token_of_a_long_answer(length: int) -> None:
    """The sums are taken in strides that double, as many as the longest answer needs; a short one beside it, too."""
    discount = 0.9999
    batch = packed([[1] * length, [0, 1, 1]], groups=[0, 1])

    result, _ = columns_of(batch, evolve(PLAIN, gamma=discount, lam=1.0), max_new_tokens=length)

    advantages = result.tokens["advantages"]
    assert float(advantages[0]) == pytest.approx(discount ** (length - 1), rel=1e-5)
    assert advantages[-3:].tolist() == pytest.approx([0.0, discount, 1.0])


def test_v3_a_reward_after_the_last_generated_token_is_not_lost() -> None:
    """Mask [0,0,1,1,0,0]: the trajectory ends in tokens it did not generate and is still paid."""
    assert _advantages(packed([[0, 0, 1, 1, 0, 0]])) == [0, 0, 1, 1, 0, 0]


def test_gae_of_a_truncated_sequence_bootstraps_from_the_last_position() -> None:
    """gamma = lambda = .9, V = .1 .2 .3 then .4 after the last action: the published values, aligned."""
    batch = packed([[0, 1, 1, 1, 0]], stops=[LENGTH], values=[9.0, 0.1, 0.2, 0.3, 0.4])

    result, _ = columns_of(batch, evolve(PLAIN, gamma=0.9, lam=0.9), max_new_tokens=8)

    assert pytest.approx(result.tokens["advantages"].tolist(), abs=5e-5) == [0.0, 0.8322, 0.9286, 1.06, 0.0]
    assert pytest.approx(result.tokens["returns"].tolist(), abs=5e-5) == [0.0, 0.9322, 1.1286, 1.36, 0.0]


def test_a_sequence_that_ended_bootstraps_nothing() -> None:
    """The same tokens with stop reason `stop`: nothing follows the last action."""
    batch = packed([[0, 1, 1, 1, 0]], stops=[STOP], values=[9.0, 0.1, 0.2, 0.3, 0.4])

    actual = _advantages(batch, evolve(PLAIN, gamma=0.9, lam=0.9))

    assert pytest.approx(actual[3]) == 1.0 - 0.3


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.ABORTED])
def test_v2_truncation_comes_from_the_stop_reason_never_from_width(reason: StopReason) -> None:
    """The short truncated row loses its reward, the longest row of the batch, which stopped, keeps it."""
    batch = packed([[0, 1], [0, 1, 1, 1, 1]], stops=[reason, STOP])

    result, metrics = columns_of(batch, evolve(PLAIN, zero_truncated=True), max_new_tokens=8)

    assert result.tokens["advantages"].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (metrics["no_eos_ratio"].value, metrics["no_eos_ratio"].weight) == (1.0, 2.0)


@settings(max_examples=60, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99))
def test_truncated_trajectories_leave_the_loss_and_stay_in_the_baseline(batch: Batch, seed: int) -> None:
    """Whoever is left has the advantages they had; where nobody is, every advantage is 0 and the mask stays."""
    batch = with_columns(batch, seed)
    mask = batch.tokens["loss_mask"]
    cut = torch.tensor(
        [STOP_CODES[int(code)] in (StopReason.LENGTH, StopReason.ABORTED) for code in batch.sequences["stop_reason"]]
    )[batch.sequence_ids]
    wanted, _ = columns_of(batch, PLAIN, max_new_tokens=5)

    found, metrics = columns_of(batch, evolve(PLAIN, mask_truncated=True), max_new_tokens=5)

    left = mask & ~cut
    if bool(left.any()):
        assert found.tokens["loss_mask"].equal(left)
        for name in ("advantages", "returns"):
            assert found.tokens[name].equal(torch.where(left, wanted.tokens[name], 0.0))
    else:
        assert found.tokens["loss_mask"].equal(mask)
        assert not found.tokens["advantages"].any()
    assert metrics["masked_truncated"] == metrics["no_eos_ratio"]
    assert batch.tokens["loss_mask"].equal(mask), "what was given was changed"


def test_where_every_answer_was_cut_off_nothing_is_learned() -> None:
    """A batch has a mask all the same: its advantages are 0."""
    batch = with_columns(packed([[0, 1, 1], [0, 1]]), seed=3)
    batch = batch.with_sequences(stop_reason=torch.full((2,), STOP_CODES.index(StopReason.LENGTH), dtype=torch.int8))

    plain, _ = columns_of(batch, PLAIN, max_new_tokens=5)
    found, metrics = columns_of(batch, evolve(PLAIN, mask_truncated=True), max_new_tokens=5)

    assert bool(plain.tokens["advantages"].any()) and not bool(found.tokens["advantages"].any())
    assert means(metrics)["masked_truncated"] == 1.0


def test_v0_a_kl_penalty_without_reference_log_probs_is_refused() -> None:
    """It would be a bonus for unlikely tokens; the error says what to do."""
    batch = packed([[0, 1]])

    with pytest.raises(BatchError, match="reference_logprobs") as caught:
        columns_of(batch, evolve(PLAIN, kl=KLConfig(coefficient=0.1)), max_new_tokens=8)

    assert "reference:" in caught.value.fix


def test_kl_is_paid_per_generated_token_only() -> None:
    """A prompt's log-probs are no actions: only the generated token is charged 0.5 * k1."""
    batch = packed([[0, 1]], rewards=[0.0], logprobs=[-1.0, -1.0], reference_logprobs=[-9.0, -3.0])

    result, metrics = columns_of(batch, evolve(PLAIN, kl=KLConfig(coefficient=0.5)), max_new_tokens=8)

    assert result.tokens["advantages"].tolist() == [0.0, -1.0]
    assert (metrics["reference_kl"].value, metrics["reference_kl"].weight) == (2.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99))
def test_v10_nothing_given_is_changed_and_twice_is_once(batch: Batch, seed: int) -> None:
    """The input keeps its bits, and a second call on the result gives the same advantages."""
    batch = with_columns(batch, seed)
    config = AdvantageConfig(
        overlong=OverlongConfig(tokens=2), kl=KLConfig(coefficient=0.1), zero_truncated=True, gamma=0.9
    )
    before = Batch.from_flat({name: column.clone() for name, column in batch.flat().items()})

    once, _ = columns_of(batch, config, max_new_tokens=4)
    twice, _ = columns_of(once, config, max_new_tokens=4)

    assert_same_batch(before, batch)
    assert_same_batch(once, twice)


@settings(max_examples=60, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99), data=st.data())
def test_the_order_of_the_rows_does_not_matter(batch: Batch, seed: int, data: st.DataObject) -> None:
    """Groups are ids: a shuffled batch gives every token the same advantage."""
    batch = with_columns(batch, seed)
    order = data.draw(st.permutations(range(batch.num_sequences)))
    config = AdvantageConfig(advantage_norm=NormConfig(mean=NormLevel.BATCH, std=NormLevel.GROUP), lam=0.9)

    straight = columns_of(batch, config, max_new_tokens=8)[0].select(order)
    shuffled = columns_of(batch.select(order), config, max_new_tokens=8)[0]

    torch.testing.assert_close(shuffled.tokens["advantages"], straight.tokens["advantages"], rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99))
def test_a_trajectory_without_generated_tokens_changes_nobody(batch: Batch, seed: int) -> None:
    """Leaving such rows out beforehand gives the same advantages and the same metrics."""
    batch = with_columns(batch, seed)
    kept = [i for i, row in enumerate(rows(batch, mask=batch.tokens["loss_mask"])) if any(row["mask"])]
    assume(len(kept) < batch.num_sequences)

    everyone, metrics = columns_of(batch, AdvantageConfig(), max_new_tokens=8)
    alone, fewer = columns_of(batch.select(kept), AdvantageConfig(), max_new_tokens=8)

    assert torch.equal(everyone.select(kept).tokens["advantages"], alone.tokens["advantages"])
    assert bool(everyone.tokens["advantages"].isfinite().all())
    assert fewer == metrics


def test_an_empty_batch_gives_empty_columns() -> None:
    """No rows, no tokens, no NaN: a data-parallel rank may get none."""
    result, metrics = columns_of(Batch.pack([]), AdvantageConfig(), max_new_tokens=8)

    assert tuple(result.tokens["advantages"].shape) == (0,)
    assert all(math.isfinite(part.value) and part.weight == 0 for part in metrics.values())


def test_the_overlong_penalty_falls_linearly_and_stops_at_the_factor() -> None:
    """Budget 4, last 2 soft, factor 0.5: lengths 2, 3, 4, 6 lose 0, .25, .5, .5."""
    batch = packed([[1] * 2, [1] * 3, [1] * 4, [1] * 6])

    actual = _advantages(batch, evolve(PLAIN, overlong=OverlongConfig(tokens=2, factor=0.5)), max_new_tokens=4)

    assert [actual[i] for i in (0, 2, 5, 9)] == [1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_named(reward: float) -> None:
    """It is refused with its row number instead of spoiling the batch."""
    with pytest.raises(BatchError, match="trajectory 1"):
        columns_of(packed([[1], [1]], rewards=[0.0, reward]), PLAIN, max_new_tokens=8)


def test_metrics_say_what_the_batch_was_like() -> None:
    """Task reward, length and the share of groups that teach nothing, as sums that add over batches."""
    batch = packed([[0, 1, 1], [0, 1], [0, 1], [0, 1]], rewards=[1.0, 0.0, 1.0, 1.0], groups=[0, 0, 1, 1])

    _, metrics = columns_of(batch, AdvantageConfig(), max_new_tokens=8)

    actual = {name: (part.value, part.weight) for name, part in metrics.items()}
    assert actual["reward"] == (3.0, 4.0)
    assert actual["response_length"] == (5.0, 4.0)
    assert actual["zero_advantage_groups"] == (1.0, 2.0)
    assert pytest.approx(actual["advantage_max"][0], abs=1e-3) == 0.7071


def test_the_critics_explained_variance_is_of_its_values_before_the_step() -> None:
    """1 for values that are the returns, 0 for a constant, below 0 for worse; absent without a critic or a spread."""

    def explained(rewards: list[float], values: list[float] | None) -> float | None:
        columns = {} if values is None else {"values": [x for value in values for x in (0.0, value)]}
        batch = packed([[0, 1]] * len(rewards), rewards=rewards, groups=list(range(len(rewards))), **columns)
        return means(columns_of(batch, PLAIN, max_new_tokens=8)[1]).get("explained_variance")

    assert explained([0.0, 1.0], [0.0, 1.0]) == pytest.approx(1.0)
    assert explained([0.0, 1.0], [0.5, 0.5]) == pytest.approx(0.0)
    assert explained([0.0, 1.0], [1.0, 0.0]) == pytest.approx(-3.0)
    assert explained([1.0, 1.0], [1.0, 0.0]) is None
    assert explained([0.0, 1.0], None) is None
