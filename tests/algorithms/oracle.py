"""A second opinion: the algorithm in pure Python floats, one loop per token, written from the formulas.

Knows: no tensors, no packing; every sequence is a list.
Does not know: how areal_core computes the same numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


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
    mode: str,
    level: str,
    lower: float,
    upper: float,
) -> float:
    """Return the loss of a whole batch.

    Every sequence holds lists: mask, policy, behaviour, proximal, alpha, advantages, entropy.
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
            centre = {
                t: row["behaviour"][t] + row["alpha"][t] * (row["policy"][t] - row["behaviour"][t]) for t in tokens
            }
        mean_log_ratio = sum(row["policy"][t] - centre[t] for t in tokens) / len(tokens)
        mean_log_weight = sum(centre[t] - row["behaviour"][t] for t in tokens) / len(tokens)
        mean_advantage = sum(row["advantages"][t] for t in tokens) / len(tokens)
        share = 0.0
        for t in tokens:
            by_sequence = ratio_level == "sequence"
            ratio = math.exp(mean_log_ratio if by_sequence else row["policy"][t] - centre[t])
            advantage = mean_advantage if by_sequence else row["advantages"][t]
            objective = min(ratio * advantage, _bounded(ratio, 1 - clip_low, 1 + high) * advantage)
            if dual_clip is not None and advantage < 0:
                objective = max(objective, dual_clip * advantage)
            weight = math.exp(mean_log_weight if level == "sequence" else centre[t] - row["behaviour"][t])
            if mode == "none":
                weight = 1.0
            elif mode == "clamp":
                weight = _bounded(weight, lower, upper)
            elif not lower <= weight <= upper:
                weight = 0.0
            share -= weight * objective + entropy_coefficient * row["entropy"][t]
        loss += share / len(tokens) if normalizer == "sequences" else share
    return loss / max(num_sequences if normalizer == "sequences" else num_tokens, 1)


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
