"""A second opinion: the algorithm in pure Python floats, one loop per token, written from the formulas.

Knows: no tensors, no packing; every sequence is a list.
Does not know: how areal_core computes the same numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def normalized(
    values: Sequence[float],
    groups: Sequence[int],
    mask: Sequence[bool],
    *,
    mean: str,
    std: str,
    leave_one_out: bool,
    unbiased: bool,
    eps: float,
) -> list[float]:
    """Return (x - mean) / (std + eps) inside the mask, 0 outside."""
    result = []
    for i, value in enumerate(values):
        if not mask[i]:
            result.append(0.0)
            continue
        inside = [j for j in range(len(values)) if mask[j]]
        peers = dict.fromkeys(("batch", "none"), inside)
        peers["group"] = [j for j in inside if groups[j] == groups[i]]
        centred = value
        if mean != "none":
            others = [values[j] for j in peers[mean] if not leave_one_out or j != i]
            agree = len({values[j] for j in peers[mean]}) == 1
            centred = 0.0 if agree else value - math.fsum(others) / len(others)
        if std != "none":
            scale = [values[j] for j in peers[std]]
            if len(set(scale)) > 1:
                centred /= (statistics.stdev(scale) if unbiased else statistics.pstdev(scale)) + eps
        result.append(centred)
    return result


def advantages(
    rewards: Sequence[float], values: Sequence[float], mask: Sequence[bool], truncated: bool, gamma: float, lam: float
) -> list[float]:
    """Return GAE of one sequence, walking backwards and carrying state through the gaps; 0 off the mask."""
    next_value = values[-1] if truncated and values else 0.0
    running = 0.0
    result = [0.0] * len(values)
    for t in reversed(range(len(values))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            running = delta + gamma * lam * running
            next_value = values[t]
            result[t] = running
    return result


def kl(logprob: float, base: float, estimator: str) -> float:
    """Return the estimate for one token, clamped to [-10, 10]."""
    x = logprob - base
    estimate = {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[estimator]
    return max(-10.0, min(10.0, estimate))


def _bounded(weight: float, lower: float, upper: float) -> float:
    return max(lower, min(upper, weight))


def surrogate_objective(
    form: str, ratio: float, held: float, logprob: float, advantage: float, low: float, high: float, tau: float
) -> float:
    """Return what is maximised for one token; `held` is the ratio where it is taken as a constant."""
    if form == "soft_gate":
        return advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
    if form == "cispo":
        return advantage * _bounded(held, low, high) * logprob
    if form == "unclipped":
        return advantage * ratio
    return min(ratio * advantage, _bounded(ratio, low, high) * advantage)


def _metric(name: str, log_weight: float) -> float:
    return {
        "ratio": log_weight,
        "k1": -log_weight,
        "k2": log_weight**2 / 2,
        "k3": math.exp(log_weight) - 1 - log_weight,
    }[name]


def behaviour_weights(
    log_weights: Sequence[float], *, mode: str, metric: str, level: str, aggregate: str, lower: float, upper: float
) -> list[float]:
    """Return the weight of every token of one sequence, 0 for one that is dropped."""
    if mode == "none":
        return [1.0] * len(log_weights)
    values = [_metric(metric, x) for x in log_weights]
    weights = [math.exp(x) for x in log_weights]
    if level == "sequence" and aggregate != "max":
        together = math.fsum(values) / (len(values) if aggregate == "mean" else 1)
        values = [together] * len(values)
        if metric == "ratio":
            weights = [math.exp(together)] * len(values)
    if metric == "ratio":
        values = [math.exp(x) for x in values]
    inside = [lower <= x <= upper for x in values]
    if level == "sequence" and aggregate == "max":
        inside = [all(inside)] * len(inside)
    if mode == "clamp":
        return [_bounded(w, lower, upper) for w in weights]
    return [w if keep else 0.0 for w, keep in zip(weights, inside, strict=True)]


def second_moment(log_weights: Sequence[float], threshold: float) -> list[bool]:
    """Return who is kept of a batch: the furthest off goes, with its equals, until the mean square is small enough."""
    kept = [True] * len(log_weights)
    while any(kept):
        squares = [x * x for x, stays in zip(log_weights, kept, strict=True) if stays]
        if math.fsum(squares) / len(squares) <= threshold:
            break
        worst = max(squares)
        kept = [stays and x * x < worst for x, stays in zip(log_weights, kept, strict=True)]
    return kept


def ppo_loss(
    sequences: Sequence[dict[str, list[float]]],
    *,
    clip_low: float,
    clip_high: float | None,
    dual_clip: float | None,
    ratio_level: str,
    normalizer: str,
    entropy_coefficient: float,
    proximal: str,
    behaviour: dict[str, Any],
    surrogate: str = "clip",
    ratio_aggregate: str = "mean",
    taus: tuple[float, float] = (1.0, 1.05),
    constant_tokens: int = 0,
    kl: tuple[float, str] = (0.0, "k2"),
) -> float:
    """Return the loss of a whole batch.

    Every sequence holds lists: mask, policy, held (the policy where it is taken as a constant), behaviour, proximal,
    alpha, kept, advantages, entropy, reference.
    """
    high = clip_low if clip_high is None else clip_high
    loss, num_tokens, num_sequences = 0.0, 0, 0
    for row in sequences:
        tokens = [t for t in range(len(row["mask"])) if row["mask"][t]]
        if not tokens:
            continue
        num_tokens += len(tokens)
        num_sequences += 1
        centre = {t: row["proximal"][t] for t in tokens}
        if proximal == "loglinear":
            centre = {t: row["behaviour"][t] + row["alpha"][t] * (row["held"][t] - row["behaviour"][t]) for t in tokens}
        if behaviour["mode"] == "second_moment":
            weights = [math.exp(centre[t] - row["behaviour"][t]) if row["kept"][t] else 0.0 for t in tokens]
        else:
            weights = behaviour_weights([centre[t] - row["behaviour"][t] for t in tokens], **behaviour)
        size = len(tokens) if ratio_aggregate == "mean" else 1
        mean_advantage = sum(row["advantages"][t] for t in tokens) / len(tokens)
        of_sequence = {name: sum(row[name][t] - centre[t] for t in tokens) / size for name in ("policy", "held")}
        share = 0.0
        for t, weight in zip(tokens, weights, strict=True):
            by_sequence = ratio_level == "sequence"
            ratio, held = (
                math.exp(of_sequence[name] if by_sequence else row[name][t] - centre[t]) for name in ("policy", "held")
            )
            advantage = mean_advantage if by_sequence else row["advantages"][t]
            tau = taus[0] if advantage > 0 else taus[1]
            bounds = (1 - clip_low, 1 + high)
            objective = surrogate_objective(surrogate, ratio, held, row["policy"][t], advantage, *bounds, tau)
            if dual_clip is not None and advantage < 0:
                objective = max(objective, dual_clip * advantage)
            share -= weight * objective + entropy_coefficient * row["entropy"][t]
            if kl[0]:
                x = row["policy"][t] - row["reference"][t]
                share += kl[0] * {"k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[kl[1]]
        over = {"sequences": len(tokens), "constant": constant_tokens, "tokens": 1}[normalizer]
        loss += share / over
    return loss / max(num_tokens if normalizer == "tokens" else num_sequences, 1)


def value_loss(
    sequences: Sequence[dict[str, list[float]]], *, clip: float | None, distance: str, huber_delta: float
) -> float:
    """Return the critic's token-mean loss. Every sequence holds lists: mask, new, old, returns."""

    def away(value: float, target: float) -> float:
        d = abs(value - target)
        if distance == "huber" and d > huber_delta:
            return huber_delta * (d - huber_delta / 2)
        return d * d / 2

    losses = []
    for row in sequences:
        for t in range(len(row["mask"])):
            if row["mask"][t]:
                new, old, target = row["new"][t], row["old"][t], row["returns"][t]
                worst = away(new, target)
                if clip is not None:
                    worst = max(worst, away(old + _bounded(new - old, -clip, clip), target))
                losses.append(worst)
    return math.fsum(losses) / max(len(losses), 1)


def sft_loss(sequences: Sequence[dict[str, list[float]]]) -> float:
    """Return the mean negative log-likelihood. Every sequence holds lists: mask, policy."""
    losses = [-p for row in sequences for p, inside in zip(row["policy"], row["mask"], strict=True) if inside]
    return math.fsum(losses) / max(len(losses), 1)


def estimated(
    name: str,
    outcomes: Sequence[float],
    token_rewards: Sequence[Sequence[float]],
    groups: Sequence[int],
    *,
    std: str = "group",
    gamma: float = 1.0,
    eps: float = 1e-4,
) -> list[list[float]]:
    """Return the advantages of the generated tokens of every sequence, by the estimator's formula.

    Every sequence generated something; `token_rewards` are of its generated tokens alone, `outcomes` their sums.
    """
    inside = [True] * len(outcomes)
    options: dict[str, Any] = {"mean": "group", "std": "none", "leave_one_out": False, "unbiased": True, "eps": eps}
    if name == "group_mean":
        each = normalized(outcomes, groups, inside, **{**options, "std": std})
    elif name == "leave_one_out":
        each = normalized(outcomes, groups, inside, **{**options, "leave_one_out": True})
    else:
        each = normalized(outcomes, groups, inside, **options)
    spread = [[value] * len(row) for value, row in zip(each, token_rewards, strict=True)]
    if name == "reinforce++":
        spread = [
            [math.fsum(gamma ** (s - t) * row[s] for s in range(t, len(row))) for t in range(len(row))]
            for row in token_rewards
        ]
    if name.startswith("reinforce"):
        flat = [value for row in spread for value in row]
        white = iter(
            normalized(flat, [0] * len(flat), [True] * len(flat), **{**options, "mean": "batch", "std": "batch"})
        )
        spread = [[next(white) for _ in row] for row in spread]
    return spread
