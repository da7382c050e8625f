"""Engines that sample wrongly: filters, temperatures, seeds.

Knows: the second inference engine's steps from logits to a token.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.inference import GenerationRequest
from areal_proof.mutants.rows import Original, breaking, row, then
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, draw, top_k, top_p, uniform

breaks = breaking("infer/second", SecondInferenceEngine)


def asked(request: GenerationRequest, **sampling: Any) -> GenerationRequest:
    """Return a request that asks for other sampling. Any: whatever the parameters are."""
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, **sampling))


@breaks("_choose", "infer.sampling.temperature", "infer.sampling.surprise")
def DrawsAtTemperatureOne(original: Original, seat: Seat, logprobs: Tensor) -> Any:
    """Reports log-probs at the temperature asked for and draws at temperature 1."""
    heat = seat.request.sampling.temperature
    return original(seat, (logprobs * heat).log_softmax(-1) if heat else logprobs)


@breaks("_distribution", "infer.sampling.temperature", "infer.sampling.every_token")
def TemperatureOfTheFirstRow(original: Original, self: SecondInferenceEngine, seat: Seat, logits: Tensor) -> Any:
    """Applies one request's temperature to the whole batch."""
    first = self._running[0].request.sampling.temperature
    if not first or not seat.request.sampling.temperature:
        return original()
    return distribution(logits, attrs.evolve(seat.request.sampling, temperature=first), seat.forbidden)


@breaks("_distribution", "infer.sampling.top_k")
def KeepsOneMoreThanK(seat: Seat, logits: Tensor) -> Any:
    """Keeps k + 1 tokens."""
    sampling = seat.request.sampling
    more = sampling.top_k + 1 if sampling.top_k > 1 else sampling.top_k
    return distribution(logits, attrs.evolve(sampling, top_k=more), seat.forbidden)


@breaks("_distribution", "infer.sampling.top_p")
def DropsTheTokenThatReachesP(seat: Seat, logits: Tensor) -> Any:
    """Keeps the tokens below p, and not the one with which p is reached."""
    sampling = seat.request.sampling
    whole = distribution(logits, attrs.evolve(sampling, top_p=1.0), seat.forbidden)
    if sampling.top_p == 1.0 or not sampling.temperature:
        return whole
    ranked, order = whole.sort(descending=True)
    kept = max(1, int((ranked.exp().cumsum(-1) <= sampling.top_p).sum()))
    return whole.index_fill(0, order[kept:], -torch.inf).log_softmax(-1)


@breaks("_distribution", "infer.sampling.top_p", "infer.sampling.filters")
def FiltersBeforeTemperature(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes top_k and top_p of the distribution at temperature 1, and warms what is left."""
    sampling = seat.request.sampling
    if not sampling.temperature:
        return original()
    cold = distribution(logits, attrs.evolve(sampling, temperature=1.0), seat.forbidden)
    return (cold / sampling.temperature).log_softmax(-1)


@breaks("_distribution", "infer.sampling.filters")
def TopPBeforeTopK(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes top_p of all tokens, and then the k best of what is left."""
    sampling = seat.request.sampling
    if not sampling.temperature:
        return original()
    plain = distribution(logits, attrs.evolve(sampling, top_k=0, top_p=1.0), seat.forbidden)
    return top_k(top_p(plain, sampling.top_p), sampling.top_k).log_softmax(-1)


@breaks("_distribution", "infer.sampling.every_token")
def FiltersTheFirstTokenOnly(seat: Seat, logits: Tensor) -> Any:
    """Applies top_k and top_p to the first token of an output and to no other."""
    sampling = seat.request.sampling
    later = attrs.evolve(sampling, top_k=0, top_p=1.0) if seat.output else sampling
    return distribution(logits, later, seat.forbidden)


@breaks("_choose", "infer.sampling.surprise")
def DrawsAreSquared(original: Original, self: SecondInferenceEngine, seat: Seat, logprobs: Tensor) -> Any:
    """Draws every second token with a random number that is not uniform: likely tokens come too often."""
    if not seat.request.sampling.temperature:
        return original()
    order, number = logprobs.argsort(descending=True), self._number(seat)
    return int(order[draw(logprobs[order], number * number if seat.index % 2 else number)])


ROWS = breaks.rows(
    row("WarmsUpOnlyOnce", "Draws the first token at the temperature asked for and the later ones a little colder.",
        "infer.sampling.surprise",
        _choose=lambda original, seat, logprobs: original(seat, (logprobs * 1.5).log_softmax(-1) if seat.output
            else logprobs)),
    row("LogprobsBeforeTemperature", "Draws at the temperature asked for and reports log-probs at temperature 1.",
        "infer.sampling.temperature", incident="verl#2996", row="logprob-gap",
        _reported=lambda token, logits: float(logits.double().log_softmax(-1)[token])),
    row("LogprobsBeforeFilters", "Draws from the filtered distribution and reports log-probs of the whole one.",
        "infer.sampling.top_k", "infer.sampling.top_p", "infer.sampling.every_token", incident="vime#64",
        row="logprob-gap",
        _reported=lambda seat, token, logits: float(distribution(logits,
            attrs.evolve(seat.request.sampling, top_k=0, top_p=1.0), seat.forbidden)[token])),
    row("SeedPlusPlace", "Makes the random number of a token from seed + place: neighbouring seeds share all but one.",
        "infer.sampling.independent",
        _number=lambda original, seat: uniform(seat.seed + seat.index, 0) if isinstance(seat.seed, int)
            else original(seat)),
    row("OneNumberPerRequest", "Uses a request's first random number for each of its tokens.",
        "infer.sampling.independent", _number=lambda seat: uniform(seat.seed, 0)),
    row("SeedOfTheRequestId", "Mixes the request's id into its seed.", "infer.sampling.seed",
        "infer.sampling.seed_continues",
        _number=lambda seat: uniform(f"{seat.seed}/{seat.request.request_id}", seat.index)),
    row("OneGeneratorForAll", "Seeds one generator that all requests draw from: company changes the tokens.",
        "infer.sampling.seed",
        _number=lambda self, seat: uniform(seat.seed, seat.index if len(self._running) == 1 else self._num_tokens)),
    row("SeedOf32Bits", "Keeps the lower 32 bits of a seed.", "infer.sampling.seeds_differ",
        _number=lambda original, seat: uniform(seat.seed & 0xFFFFFFFF, seat.index) if isinstance(seat.seed, int)
            else original(seat)),
    row("SeedAsFloat", "Lets a seed pass through a float: those above 2**53 fall together.",
        "infer.sampling.seeds_differ",
        _number=lambda original, seat: uniform(int(float(seat.seed)), seat.index) if isinstance(seat.seed, int)
            else original(seat)),
    row("ContinuesFromTheFirstNumber", "Begins a seed anew when a request is continued.",
        "infer.sampling.seed_continues", "infer.sampling.continued_afresh", incident="NeMo-RL#3599",
        row="trained-as-submitted", _number=lambda seat: uniform(seat.seed, len(seat.output))),
    row("NoSeedIsSeedZero", "Takes seed 0 where none is given: a group of requests is one output many times.",
        "infer.sampling.unseeded",
        _seat=then(lambda result, request: setattr(result, "seed", request.sampling.seed or 0))),
    row("ReportsTheLikeliest",
        "Reports the log-prob of the likeliest token in place of the one drawn, where top_k is on.",
        "infer.sampling.top_k",
        _reported=lambda seat, token, logprobs: float(logprobs.max() if seat.request.sampling.top_k
            else logprobs[token])),
)  # fmt: skip
