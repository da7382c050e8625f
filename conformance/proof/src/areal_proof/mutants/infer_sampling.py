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
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, draw, top_k, top_p, uniform


def asked(request: GenerationRequest, **sampling: Any) -> GenerationRequest:
    """Return a request that asks for other sampling. Any: whatever the parameters are."""
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, **sampling))


@mutant("infer/second", killers=("infer.sampling.temperature", "infer.sampling.surprise"))
class DrawsAtTemperatureOne(SecondInferenceEngine):
    """Reports log-probs at the temperature asked for and draws at temperature 1."""

    def _choose(self, seat: Seat, logprobs: Tensor) -> int:
        heat = seat.request.sampling.temperature
        return super()._choose(seat, (logprobs * heat).log_softmax(-1) if heat else logprobs)


@mutant("infer/second", killers=("infer.sampling.surprise",))
class WarmsUpOnlyOnce(SecondInferenceEngine):
    """Draws the first token at the temperature asked for and the later ones a little colder."""

    def _choose(self, seat: Seat, logprobs: Tensor) -> int:
        return super()._choose(seat, (logprobs * 1.5).log_softmax(-1) if seat.output else logprobs)


@mutant("infer/second", killers=("infer.sampling.temperature", "infer.sampling.every_token"))
class TemperatureOfTheFirstRow(SecondInferenceEngine):
    """Applies one request's temperature to the whole batch."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        first = self._running[0].request.sampling.temperature
        if not first or not seat.request.sampling.temperature:
            return super()._distribution(seat, logits)
        return distribution(logits, attrs.evolve(seat.request.sampling, temperature=first), seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.temperature",), incident="verl#2996", row="logprob-gap")
class LogprobsBeforeTemperature(SecondInferenceEngine):
    """Draws at the temperature asked for and reports log-probs at temperature 1."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(logits.double().log_softmax(-1)[token])


@mutant("infer/second", killers=("infer.sampling.top_k",))
class KeepsOneMoreThanK(SecondInferenceEngine):
    """Keeps k + 1 tokens."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        more = sampling.top_k + 1 if sampling.top_k > 1 else sampling.top_k
        return distribution(logits, attrs.evolve(sampling, top_k=more), seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.top_p",))
class DropsTheTokenThatReachesP(SecondInferenceEngine):
    """Keeps the tokens below p, and not the one with which p is reached."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        whole = distribution(logits, attrs.evolve(sampling, top_p=1.0), seat.forbidden)
        if sampling.top_p == 1.0 or not sampling.temperature:
            return whole
        ranked, order = whole.sort(descending=True)
        kept = max(1, int((ranked.exp().cumsum(-1) <= sampling.top_p).sum()))
        return whole.index_fill(0, order[kept:], -torch.inf).log_softmax(-1)


@mutant("infer/second", killers=("infer.sampling.top_p", "infer.sampling.filters"))
class FiltersBeforeTemperature(SecondInferenceEngine):
    """Takes top_k and top_p of the distribution at temperature 1, and warms what is left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        if not sampling.temperature:
            return super()._distribution(seat, logits)
        cold = distribution(logits, attrs.evolve(sampling, temperature=1.0), seat.forbidden)
        return (cold / sampling.temperature).log_softmax(-1)


@mutant("infer/second", killers=("infer.sampling.filters",))
class TopPBeforeTopK(SecondInferenceEngine):
    """Takes top_p of all tokens, and then the k best of what is left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        if not sampling.temperature:
            return super()._distribution(seat, logits)
        plain = distribution(logits, attrs.evolve(sampling, top_k=0, top_p=1.0), seat.forbidden)
        return top_k(top_p(plain, sampling.top_p), sampling.top_k).log_softmax(-1)


@mutant(
    "infer/second",
    killers=("infer.sampling.top_k", "infer.sampling.top_p", "infer.sampling.every_token"),
    incident="vime#64",
    row="logprob-gap",
)
class LogprobsBeforeFilters(SecondInferenceEngine):
    """Draws from the filtered distribution and reports log-probs of the whole one."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        whole = attrs.evolve(seat.request.sampling, top_k=0, top_p=1.0)
        return float(distribution(logits, whole, seat.forbidden)[token])


@mutant("infer/second", killers=("infer.sampling.every_token",))
class FiltersTheFirstTokenOnly(SecondInferenceEngine):
    """Applies top_k and top_p to the first token of an output and to no other."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        later = attrs.evolve(sampling, top_k=0, top_p=1.0) if seat.output else sampling
        return distribution(logits, later, seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.independent",))
class SeedPlusPlace(SecondInferenceEngine):
    """Makes the random number of a token from seed + place: neighbouring seeds share all but one."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed + seat.index, 0) if isinstance(seat.seed, int) else super()._number(seat)


@mutant("infer/second", killers=("infer.sampling.independent",))
class OneNumberPerRequest(SecondInferenceEngine):
    """Uses a request's first random number for each of its tokens."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed, 0)


@mutant("infer/second", killers=("infer.sampling.seed", "infer.sampling.seed_continues"))
class SeedOfTheRequestId(SecondInferenceEngine):
    """Mixes the request's id into its seed."""

    def _number(self, seat: Seat) -> float:
        return uniform(f"{seat.seed}/{seat.request.request_id}", seat.index)


@mutant("infer/second", killers=("infer.sampling.seed",))
class OneGeneratorForAll(SecondInferenceEngine):
    """Seeds one generator that all requests draw from: company changes the tokens."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed, seat.index if len(self._running) == 1 else self._num_tokens)


@mutant("infer/second", killers=("infer.sampling.seeds_differ",))
class SeedOf32Bits(SecondInferenceEngine):
    """Keeps the lower 32 bits of a seed."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed & 0xFFFFFFFF, seat.index) if isinstance(seat.seed, int) else super()._number(seat)


@mutant("infer/second", killers=("infer.sampling.seeds_differ",))
class SeedAsFloat(SecondInferenceEngine):
    """Lets a seed pass through a float: those above 2**53 fall together."""

    def _number(self, seat: Seat) -> float:
        return uniform(int(float(seat.seed)), seat.index) if isinstance(seat.seed, int) else super()._number(seat)


@mutant(
    "infer/second",
    killers=("infer.sampling.seed_continues", "infer.sampling.continued_afresh"),
    incident="NeMo-RL#3599",
    row="trained-as-submitted",
)
class ContinuesFromTheFirstNumber(SecondInferenceEngine):
    """Begins a seed anew when a request is continued."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed, len(seat.output))


@mutant("infer/second", killers=("infer.sampling.unseeded",))
class NoSeedIsSeedZero(SecondInferenceEngine):
    """Takes seed 0 where none is given: a group of requests is one output many times."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        seat.seed = request.sampling.seed or 0
        return seat


@mutant("infer/second", killers=("infer.sampling.surprise",))
class DrawsAreSquared(SecondInferenceEngine):
    """Draws every second token with a random number that is not uniform: likely tokens come too often."""

    def _choose(self, seat: Seat, logprobs: Tensor) -> int:
        if not seat.request.sampling.temperature:
            return super()._choose(seat, logprobs)
        order, number = logprobs.argsort(descending=True), self._number(seat)
        return int(order[draw(logprobs[order], number * number if seat.index % 2 else number)])


@mutant("infer/second", killers=("infer.sampling.top_k",))
class ReportsTheLikeliest(SecondInferenceEngine):
    """Reports the log-prob of the likeliest token in place of the one drawn, where top_k is on."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(logprobs.max() if seat.request.sampling.top_k else logprobs[token])
