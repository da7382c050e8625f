"""From a batch of rollouts to advantages and returns.

Knows: the order of the steps, where the final reward goes, and what is worth reporting.
Does not know: how an estimator works, which objective uses what it gives, or who computed values and log-probs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_algorithms.normalize import normalize, places
from areal_algorithms.ratios import kl_estimate
from areal_algorithms.reduction import generated_lengths
from areal_algorithms.rewards import is_truncated, overlong_penalty, shape_rewards
from areal_core.algorithms.config import AdvantageConfig
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.estimator import Estimator
from areal_core.contract.train import Sum

_ZERO = 1e-8


def compute_advantages(
    batch: Batch, config: AdvantageConfig, estimator: Estimator, *, max_new_tokens: int
) -> tuple[Batch, dict[str, Sum]]:
    """Add float32 token columns `advantages` and `returns`, both 0 off the loss mask.

    Called by the controller once per step, on the whole batch, before it is cut into minibatches
    and shards. Reads the token columns `values` (absent: no critic, V = 0) and `reference_logprobs`.
    Changes nothing it was given; the new batch shares the other columns.

    Steps: overlong penalty; (r + bias) * scale; clip; zero if truncated; reward norm; minus
    coefficient * KL per generated token; the final reward on the last generated token; the
    estimator; returns = A + V; advantage norm; truncated trajectories leave the loss mask, if they are to.

    Returns:
        The batch, and metrics that add over batches.

    Raises:
        BatchError: a reward is not finite, or a KL penalty is asked for without `reference_logprobs`.
    """
    mask = batch.tokens["loss_mask"]
    reward = shape_rewards(batch, config, max_new_tokens=max_new_tokens)
    kl = _reference_kl(batch, config)
    token_rewards = -config.kl.coefficient * kl
    token_rewards = token_rewards + _on_last_generated(batch, reward.to(torch.float64))

    raw = torch.where(mask, estimator(batch, token_rewards).to(torch.float64), 0.0)
    column = batch.tokens.get("values", None)
    values = torch.zeros_like(token_rewards) if column is None else column.to(torch.float64)
    returns = torch.where(mask, raw + values, 0.0)
    token_groups = batch.sequences["group"][batch.sequence_ids]
    advantages = normalize(raw, config.advantage_norm, groups=token_groups, mask=mask)

    metrics = _metrics(batch, config, max_new_tokens=max_new_tokens, kl=kl, raw=raw, advantages=advantages)
    spread, left = (float(x[mask].var(correction=0)) if mask.any() else 0.0 for x in (returns, returns - values))
    if column is not None and spread:
        metrics["explained_variance"] = Sum(value=1.0 - left / spread, weight=1.0)
    batch = batch.with_tokens(advantages=advantages, returns=returns.to(torch.float32))
    return _without_truncated(batch, metrics) if config.mask_truncated else batch, metrics


def _without_truncated(batch: Batch, metrics: dict[str, Sum]) -> Batch:
    """Take truncated trajectories out of the loss mask; where that leaves nothing, their advantages are 0 instead.

    The filter of DAPO (arXiv 2503.14476, section 3.4). A loss is a mean over tokens; with all advantages 0 it has
    no gradient, aside from a KL or entropy term.
    """
    mask, advantages = batch.tokens["loss_mask"], batch.tokens["advantages"]
    truncated = is_truncated(batch)[batch.sequence_ids]
    alive = generated_lengths(batch) > 0
    masked, sequences = float((is_truncated(batch) & alive).sum()), float(alive.sum())
    metrics["masked_truncated"] = Sum(value=masked, weight=sequences)
    left = mask & ~truncated
    if not left.any():
        return batch.with_tokens(advantages=torch.zeros_like(advantages))
    zeros = {name: torch.where(left, batch.tokens[name], 0.0) for name in ("advantages", "returns")}
    return batch.with_tokens(loss_mask=left, **zeros)


def _reference_kl(batch: Batch, config: AdvantageConfig) -> Tensor:
    """Return the KL estimate against the reference model per token, float64 [T], 0 off the mask."""
    mask = batch.tokens["loss_mask"]
    reference = batch.tokens.get("reference_logprobs", None)
    if reference is None:
        if config.kl.coefficient > 0.0:
            raise BatchError(
                "token column 'reference_logprobs' is missing",
                why=f"advantages.kl.coefficient is {config.kl.coefficient}: a penalty against no model is a bonus "
                "for unlikely tokens",
                fix="configure `reference:`, or set algorithm.advantages.kl.coefficient to 0",
            )
        return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    behaviour = batch.tokens["logprobs"].to(torch.float64)
    return torch.where(mask, kl_estimate(behaviour, reference.to(torch.float64), config.kl.estimator), 0.0)


def _on_last_generated(batch: Batch, reward: Tensor) -> Tensor:
    """Return a column [T] with each trajectory's reward on its last generated token, if it has one.

    Not on its last token: a tool result or an end-of-turn marker may follow, and no action is there.
    """
    index = batch.tokens["loss_mask"].nonzero().squeeze(1)
    sequence = batch.sequence_ids[index]
    last = torch.ones_like(sequence, dtype=torch.bool)
    last[:-1] = sequence[1:] != sequence[:-1]
    column = torch.zeros(batch.num_tokens, dtype=reward.dtype, device=reward.device)
    column[index[last]] = reward[sequence[last]]
    return column


def _metrics(
    batch: Batch, config: AdvantageConfig, *, max_new_tokens: int, kl: Tensor, raw: Tensor, advantages: Tensor
) -> dict[str, Sum]:
    mask = batch.tokens["loss_mask"]
    lengths = generated_lengths(batch)
    alive = lengths > 0
    sequences, tokens = float(alive.sum()), float(mask.sum())
    inside = advantages[mask].to(torch.float64)
    live = alive[batch.sequence_ids]
    group_of_token, members = places(batch.sequences["group"][batch.sequence_ids][live])
    moved = torch.zeros(len(members), dtype=torch.float64, device=mask.device)
    moved = moved.scatter_reduce(0, group_of_token, raw.abs()[live], "amax")

    metrics = {
        "reward": Sum(value=float(batch.sequences["reward"].to(torch.float64)[alive].sum()), weight=sequences),
        "response_length": Sum(value=float(lengths.sum()), weight=sequences),
        "no_eos_ratio": Sum(value=float((is_truncated(batch) & alive).sum()), weight=sequences),
        "zero_advantage_groups": Sum(value=float((moved < _ZERO).sum()), weight=float(len(members))),
        "advantage_mean": Sum(value=float(inside.sum()), weight=tokens),
    }
    if len(inside):
        # Not sums by nature: the weight 1 makes them means over the batches they are added over.
        metrics["advantage_std"] = Sum(value=float(inside.std(correction=0)), weight=1.0)
        metrics["advantage_min"] = Sum(value=float(inside.min()), weight=1.0)
        metrics["advantage_max"] = Sum(value=float(inside.max()), weight=1.0)
    if batch.tokens.get("reference_logprobs", None) is not None:
        metrics["reference_kl"] = Sum(value=float(kl.sum()), weight=tokens)
    if config.overlong.over(max_new_tokens):
        penalty = overlong_penalty(lengths, config.overlong, max_new_tokens)
        metrics["overlong_penalty"] = Sum(value=float(penalty[alive].sum()), weight=sequences)
    return metrics
