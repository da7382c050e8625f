"""What a step computed is taken out of its batch: ratios, where the trainer's log-probs before the step are known."""

from __future__ import annotations

import math

import torch

from areal_episodes.step_columns import StepColumns
from areal_torch.testing.batches import make_batch


def test_a_ratio_that_was_asked_for_is_there_even_if_it_is_one() -> None:
    """It is of the trainer's log-probs before the step, whatever the centre of the clip is."""
    batch = make_batch([(2, 3), (1, 5)])
    mask, sampled = batch.tokens["loss_mask"], batch.tokens["logprobs"]
    batch = batch.with_tokens(advantages=torch.zeros_like(sampled), proximal_logprobs=sampled.clone())

    none = StepColumns.of(batch)
    one = StepColumns.of(batch.with_tokens(policy_logprobs=sampled))
    half = StepColumns.of(batch.with_tokens(policy_logprobs=sampled - math.log(2.0)))

    assert "ratio" not in none.tokens
    assert one.tokens["ratio"].tolist() == mask.float().tolist()
    torch.testing.assert_close(half.tokens["ratio"], mask.float() / 2)
