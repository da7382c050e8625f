"""The critic's and the supervised objective against their oracles, and on batches with nothing to learn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_algorithms.objectives.value import Distance, ValueConfig, ValueObjective
from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective
from areal_torch.testing.batches import batches

from . import oracle
from .cases import packed, rows, with_columns

OBJECTIVES = [PPOObjective(PPOConfig()), ValueObjective(ValueConfig()), SFTObjective(SFTConfig())]


@settings(max_examples=100, deadline=None)
@given(
    batch=batches(min_groups=1),
    seed=st.integers(0, 99),
    clip=st.sampled_from([None, 0.2]),
    distance=st.sampled_from(Distance),
)
def test_the_value_loss_equals_the_oracle(batch: Batch, seed: int, clip: float | None, distance: Distance) -> None:
    """Clipped or not, squared or huber, it agrees with a loop over tokens."""
    batch = with_columns(batch, seed)
    new = batch.tokens["values"].double() + torch.randn(
        batch.num_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    objective = ValueObjective(ValueConfig(clip=clip, distance=distance, huber_delta=0.5))
    columns = {"mask": batch.tokens["loss_mask"], "new": new}
    columns |= {"old": batch.tokens["values"], "returns": batch.tokens["returns"]}
    expected = oracle.value_loss(rows(batch, **columns), clip=clip, distance=distance.value, huber_delta=0.5)

    loss, _ = objective.loss({"values": new}, batch, objective.normalizer(batch))

    assert expected == pytest.approx(float(loss), rel=1e-9, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(batch=batches(min_groups=1))
def test_the_sft_loss_equals_the_oracle(batch: Batch) -> None:
    """It is the mean of -log p over marked tokens."""
    logprobs = batch.tokens["logprobs"].double() - 0.5
    expected = oracle.sft_loss(rows(batch, mask=batch.tokens["loss_mask"], policy=logprobs))

    objective = SFTObjective(SFTConfig())
    loss, _ = objective.loss({"logprobs": logprobs}, batch, objective.normalizer(batch))

    assert expected == pytest.approx(float(loss), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
@pytest.mark.parametrize("masks", [[[0, 0]], []], ids=["nothing generated", "empty"])
def test_v12_a_batch_without_a_generated_token_has_loss_zero(objective: Objective, masks: list[list[int]]) -> None:
    """Loss and gradient are 0, not 0 / 0, so a rank with an empty shard still takes part."""
    batch = with_columns(packed(masks), seed=1)
    column = torch.randn(batch.num_tokens, requires_grad=True)

    normalizer = objective.normalizer(batch)
    loss, metrics = objective.loss(dict.fromkeys(objective.outputs, column), batch, normalizer)
    loss.backward()

    assert 0.0 == float(normalizer) == float(loss.detach()) == float(column.grad.abs().sum())
    assert all(part.value == 0.0 and part.weight == 0.0 for part in metrics.values())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_junk_off_the_mask_reaches_neither_loss_nor_gradient(objective: Objective) -> None:
    """NaN on a prompt token, in any column, changes nothing."""
    batch = with_columns(packed([[0, 1, 1]]), seed=1)
    spoiled = batch.with_tokens(
        **{
            name: torch.where(batch.tokens["loss_mask"], batch.tokens[name], torch.nan)
            for name in ("advantages", "returns", "values", "proximal_logprobs", "logprobs")
        }
    )
    clean = torch.tensor([0.0, -0.3, -0.4], requires_grad=True)
    dirty = torch.tensor([torch.nan, -0.3, -0.4], requires_grad=True)

    for column, one in ((clean, batch), (dirty, spoiled)):
        objective.loss(dict.fromkeys(objective.outputs, column), one, objective.normalizer(one))[0].backward()

    assert clean.grad.tolist() == dirty.grad.tolist()
