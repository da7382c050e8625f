"""What sampling must do, in float64: the filtered distribution, and how likely a set of draws is under it.

Knows: penalties, temperature, forbidden tokens, min-p, top-k, top-p, the G-test, and where a filter's border is too
close to call.
Does not know: engines or models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from attrs import frozen
from torch import Tensor

CLOSE = 1e-4
"""A filter whose border lies within this of another outcome may fall either way in float32."""
MIN_EXPECTED = 20.0
"""Cells of a G-test expect at least this many draws; the chi-square tail holds well beyond 1e-6 then."""


@frozen
class Filtered:
    """Log-probs [V] of what is drawn from; `decided` is False where rounding decides which tokens are left."""

    logprobs: Tensor
    decided: bool

    @property
    def support(self) -> set[int]:
        """Return the tokens that may be drawn."""
        return set(torch.isfinite(self.logprobs).nonzero()[:, 0].tolist())


def filtered(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden: Iterable[int] = (),
) -> Filtered:
    """Return the distribution a token is drawn from, given float32 logits [V] and a temperature above 0."""
    scores, decided = logits.double().clone(), True
    scores[list(forbidden)] = -torch.inf
    scores /= temperature
    if min_p > 0:
        above = (scores - scores.max()) - math.log(min_p)
        above[scores.argmax()] = torch.inf  # the best token stays, whatever min_p
        decided = not bool((above.abs() < CLOSE).any())
        scores[above < 0] = -torch.inf
    ranked, order = scores.sort(descending=True, stable=True)
    if 0 < top_k < len(scores):
        decided = decided and not bool(ranked[top_k - 1] - ranked[top_k] <= CLOSE)
        scores[order[top_k:]] = -torch.inf
    if top_p < 1.0:
        ranked, order = scores.sort(descending=True, stable=True)
        reached = ranked.softmax(-1).cumsum(-1)
        kept = 1 + int((reached < top_p).sum())
        near = bool(((reached[: len(reached) - 1] - top_p).abs() < CLOSE).any())
        tie = kept < len(ranked) and bool(ranked[kept - 1] - ranked[kept] < CLOSE)
        decided = decided and not near and not tie
        scores[order[kept:]] = -torch.inf
    return Filtered(scores.log_softmax(-1), decided)


def penalised(
    logits: Tensor,
    *,
    prompt: Iterable[int],
    output: Sequence[int],
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> Tensor:
    """Return float64 logits [V] after penalties, given those of the token that follows `prompt` and `output`."""
    scores = logits.double().clone()
    counts = torch.bincount(torch.tensor(list(output), dtype=torch.int64), minlength=len(scores)).double()
    seen = counts > 0
    seen[list(prompt)] = True
    shrunk = torch.where(scores > 0, scores / repetition_penalty, scores * repetition_penalty)
    scores = torch.where(seen, shrunk, scores)
    return scores - frequency_penalty * counts - presence_penalty * (counts > 0)


def improbability(draws: Iterable[int], logprobs: Tensor) -> float:
    """Return the chance of a fit as bad as that of `draws` to exp(`logprobs`), by a G-test. 0 for a draw outside."""
    counts = Counter(draws)
    total = sum(counts.values())
    expected = logprobs.double().exp() * total
    if any(expected[token] == 0 for token in counts):
        return 0.0
    cells = [(counts[token], float(expected[token])) for token in range(len(logprobs)) if expected[token] > 0]
    large = [cell for cell in cells if cell[1] >= MIN_EXPECTED]
    small = [cell for cell in cells if cell[1] < MIN_EXPECTED]
    rest = (sum(count for count, _ in small), sum(wanted for _, wanted in small))
    if rest[1] >= MIN_EXPECTED:
        large.append(rest)
    elif large and small:
        large[-1] = (large[-1][0] + rest[0], large[-1][1] + rest[1])
    statistic = 2 * sum(count * math.log(count / wanted) for count, wanted in large if count)
    freedom = len(large) - 1
    if freedom < 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0).double(), torch.tensor(statistic / 2).double()))


def middle(logprobs: Tensor, token: int) -> float:
    """Return where a draw fell in the cumulated distribution, in the middle of its step: about uniform in (0, 1)."""
    chances = logprobs.double().exp()
    return float(chances[:token].sum() + chances[token] / 2)


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the correlation of two rows of numbers in standard deviations of what independence gives."""
    pair = torch.tensor([list(left), list(right)], dtype=torch.float64)
    return float(torch.corrcoef(pair)[0, 1]) * math.sqrt(pair.shape[1])
