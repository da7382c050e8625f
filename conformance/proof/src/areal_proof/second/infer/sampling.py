"""From one row of logits to one token.

Knows: penalties, forbidden tokens, temperature, min-p, top-k, top-p, a random number per (seed, place).
Does not know: requests, batches, or what ends an output.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from areal_core.contract.inference import SamplingParams


def distribution(logits: Tensor, sampling: SamplingParams, forbidden: tuple[int, ...] = ()) -> Tensor:
    """Return the log-probs [V] a token is drawn from: forbidden tokens out, temperature, min p, the k best, the top p.

    With temperature 0 they are the model's own, at temperature 1: those of the degenerate one would all be 0.
    """
    scores = logits.double()
    if forbidden:
        scores = scores.index_fill(0, torch.tensor(forbidden, device=scores.device), float("-inf"))
    if sampling.temperature > 0:
        scores = scores / sampling.temperature
        scores = top_p(top_k(min_p(scores, sampling.min_p), sampling.top_k), sampling.top_p)
    return scores.log_softmax(-1)


def penalised(logits: Tensor, sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """Return float64 logits [V] after the penalties on what is in the prompt and in the whole output so far."""
    scores = logits.double().clone()
    for token in {*prompt, *output}:
        rate = sampling.repetition_penalty
        scores[token] *= rate if scores[token] < 0 else 1 / rate
    for token, count in Counter(output).items():
        scores[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return scores


def min_p(scores: Tensor, share: float) -> Tensor:
    """Rule out what is less probable than a share of the likeliest; 0 rules out none."""
    if share <= 0:
        return scores
    chances = scores.softmax(-1)
    return scores.masked_fill(chances < share * chances.max(), float("-inf"))


def top_k(scores: Tensor, k: int) -> Tensor:
    """Rule out all but the k best; 0 rules out none."""
    if k <= 0 or k >= len(scores):
        return scores
    best = scores.argsort(descending=True, stable=True)
    return scores.index_fill(0, best[k:], float("-inf"))


def top_p(scores: Tensor, p: float) -> Tensor:
    """Rule out all but the fewest best tokens whose probability reaches p; 1 rules out none."""
    if p >= 1.0:
        return scores
    ranked, best = scores.sort(descending=True, stable=True)
    reached = ranked.softmax(-1).cumsum(-1)
    kept = 1 + int((reached < p).sum())
    return scores.index_fill(0, best[kept:], float("-inf"))


def uniform(seed: int | str, index: int) -> float:
    """Return a number in [0, 1) that depends on the seed and on the token's place in the whole output alone."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def draw(logprobs: Tensor, number: float) -> int:
    """Return the token at which the cumulated probability passes `number`."""
    cumulated = logprobs.exp().cumsum(-1)
    target = torch.tensor([number], dtype=cumulated.dtype, device=cumulated.device) * cumulated[-1]
    return min(int(torch.searchsorted(cumulated, target, right=True)), len(cumulated) - 1)
