"""Preference losses of pairs of scores, with their derivatives.

Sequences come in pairs: 2 i is the better answer of pair i, 2 i + 1 the worse one. The score of a sequence is
`scale * (sum over its learned tokens of x - reference)`:

| kind | x | scale | loss of a pair, h = better - worse |
|---|---|---|---|
| dpo | log-probs | beta | -(1 - s) log sigmoid(h) - s log sigmoid(-h), s the label smoothing |
| ipo | log-probs | 1 / number of tokens | (h - 1 / (2 beta))^2 |
| reward_model | values | 1 | -log sigmoid(h) + c (better + worse)^2 |

Knows: these formulas, in float64. Does not know: engines, or where scores come from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import logsigmoid

from areal_core.contract.batch import Batch
from areal_core.contract.train import Sum
from areal_supervised.config import DPOConfig, IPOConfig, RewardModelConfig
from areal_supervised.linear import SLOPE, VALUE


@frozen(kw_only=True)
class Judged:
    """Losses of P pairs and their derivatives by the scores, float64 [P] each."""

    loss: Tensor
    by_better: Tensor
    by_worse: Tensor


@frozen(kw_only=True)
class Formula:
    """A row of the table above. `scale` takes the numbers of learned tokens, [N]."""

    scale: Callable[[Tensor], Tensor]
    judge: Callable[[Tensor, Tensor], Judged]


def dpo(config: DPOConfig) -> Formula:
    """Return the formula of DPO (arXiv 2305.18290, equation 7), with smoothed labels."""
    return Formula(
        scale=lambda lengths: torch.full_like(lengths, config.beta, dtype=torch.float64),
        judge=partial(_logistic, smoothing=config.label_smoothing),
    )


def ipo(config: IPOConfig) -> Formula:
    """Return the formula of IPO (arXiv 2310.12036, equation 17), on means over tokens."""
    return Formula(scale=lambda lengths: 1.0 / lengths.to(torch.float64), judge=partial(_squared, beta=config.beta))


def reward_model(config: RewardModelConfig) -> Formula:
    """Return the Bradley-Terry loss of two rewards, with a pull of their sum to 0 (arXiv 2312.09244)."""
    return Formula(
        scale=lambda lengths: torch.ones_like(lengths, dtype=torch.float64),
        judge=partial(_logistic, smoothing=0.0, center=config.center_coefficient),
    )


def compare(batch: Batch, x: Tensor, reference: Tensor | None, formula: Formula) -> tuple[Batch, dict[str, Sum]]:
    """Add the float32 columns `slope` and `value` of objective `linear`, and tell how pairs are judged.

    Args:
        x: a column of the trainer's, float32 [T], under the weights that are to be stepped.
        reference: the same of the reference model, None for 0.

    Returns:
        The batch, and sums over pairs: `loss`, `accuracy` (the better answer scores higher), `margin`, and the scores.
    """
    mask, ids = batch.tokens["loss_mask"], batch.sequence_ids
    column = torch.where(mask, (x if reference is None else x - reference).to(torch.float64), 0.0)
    zeros = torch.zeros(batch.num_sequences, dtype=torch.float64)
    lengths = zeros.index_add(0, ids, mask.to(torch.float64))
    scale = formula.scale(lengths)
    scores = scale * zeros.index_add(0, ids, column)
    judged = formula.judge(scores[0::2], scores[1::2])
    slopes = torch.stack([judged.by_better, judged.by_worse], dim=1).flatten() * scale
    values = (judged.loss / 2).repeat_interleave(2) / lengths
    better, worse, pairs = scores[0::2], scores[1::2], float(len(judged.loss))
    told = {
        "loss": judged.loss,
        "accuracy": (better > worse).to(torch.float64),
        "margin": better - worse,
        "score_chosen": better,
        "score_rejected": worse,
    }
    marked = {name: torch.where(mask, each[ids], 0.0).to(torch.float32) for name, each in _named(slopes, values)}
    return batch.with_tokens(**marked), {k: Sum(value=float(v.sum()), weight=pairs) for k, v in told.items()}


def _named(slopes: Tensor, values: Tensor) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    return (SLOPE, slopes), (VALUE, values)


def _logistic(better: Tensor, worse: Tensor, *, smoothing: float, center: float = 0.0) -> Judged:
    h, both = better - worse, better + worse
    slope = smoothing * torch.sigmoid(h) - (1.0 - smoothing) * torch.sigmoid(-h)
    return Judged(
        loss=-(1.0 - smoothing) * logsigmoid(h) - smoothing * logsigmoid(-h) + center * both.square(),
        by_better=slope + 2.0 * center * both,
        by_worse=-slope + 2.0 * center * both,
    )


def _squared(better: Tensor, worse: Tensor, *, beta: float) -> Judged:
    left = better - worse - 1.0 / (2.0 * beta)
    return Judged(loss=left.square(), by_better=2.0 * left, by_worse=-2.0 * left)
