"""Engines that sample wrongly: filters, temperatures, seeds, min-p, penalties.

Knows: the second inference engine's steps from logits to a token.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.inference import GenerationRequest, SamplingParams
from areal_proof.mutants.rows import Original, after, breaking, row, then, without
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, draw, min_p, penalised, top_k, top_p, uniform

breaks = breaking("infer/second", SecondInferenceEngine)


def asked(request: GenerationRequest, **sampling: Any) -> GenerationRequest:
    """Return a request that asks for other sampling. Any: whatever the parameters are."""
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, **sampling))


def drawn(seat: Seat, logits: Tensor, **sampling: Any) -> Tensor:
    """Return what a seat is drawn from, were other parameters asked for. Any: whatever the parameters are."""
    return distribution(logits, attrs.evolve(seat.request.sampling, **sampling), seat.forbidden)


def lowered(seat: Seat, logits: Tensor, **sampling: Any) -> Tensor:
    """Return the logits of a seat after penalties, were other ones asked for. Any: whatever the parameters are."""
    return penalised(logits, attrs.evolve(seat.request.sampling, **sampling), seat.prompt, seat.produced)


@breaks("choose", "infer.sampling.temperature", "infer.sampling.surprise")
def DrawsAtTemperatureOne(original: Original, seat: Seat, logprobs: Tensor) -> Any:
    """Reports log-probs at the temperature asked for and draws at temperature 1."""
    heat = seat.request.sampling.temperature
    return original(seat, (logprobs * heat).log_softmax(-1) if heat else logprobs)


@breaks("distribution", "infer.sampling.top_p")
def DropsTheTokenThatReachesP(seat: Seat, logits: Tensor) -> Any:
    """Keeps the tokens below p, and not the one with which p is reached."""
    sampling = seat.request.sampling
    whole = distribution(logits, attrs.evolve(sampling, top_p=1.0), seat.forbidden)
    if sampling.top_p == 1.0 or not sampling.temperature:
        return whole
    ranked, order = whole.sort(descending=True)
    kept = max(1, int((ranked.exp().cumsum(-1) <= sampling.top_p).sum()))
    return whole.index_fill(0, order[kept:], -torch.inf).log_softmax(-1)


@breaks("distribution", "infer.sampling.top_p", "infer.sampling.filters")
def FiltersBeforeTemperature(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes top_k and top_p of the distribution at temperature 1, and warms what is left."""
    heat = seat.request.sampling.temperature
    return (drawn(seat, logits, temperature=1.0) / heat).log_softmax(-1) if heat else original()


@breaks("distribution", "infer.sampling.filters")
def TopPBeforeTopK(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes top_p of all tokens, and then the k best of what is left."""
    sampling = seat.request.sampling
    if not sampling.temperature:
        return original()
    plain = distribution(logits, attrs.evolve(sampling, top_k=0, top_p=1.0), seat.forbidden)
    return top_k(top_p(plain, sampling.top_p), sampling.top_k).log_softmax(-1)


@breaks("choose", "infer.sampling.surprise")
def DrawsAreSquared(original: Original, self: SecondInferenceEngine, seat: Seat, logprobs: Tensor) -> Any:
    """Draws every second token with a random number that is not uniform: likely tokens come too often."""
    if not seat.request.sampling.temperature:
        return original()
    order, number = logprobs.argsort(descending=True), self.number(seat)
    return int(order[draw(logprobs[order], number * number if seat.index % 2 else number)])


ROWS = breaks.rows(
    row("WarmsUpOnlyOnce", "Draws the first token at the temperature asked for and the later ones a little colder.",
        "infer.sampling.surprise",
        choose=lambda original, seat, logprobs: original(seat, (logprobs * 1.5).log_softmax(-1) if seat.output
            else logprobs)),
    row("LogprobsBeforeTemperature", "Draws at the temperature asked for and reports log-probs at temperature 1.",
        "infer.sampling.temperature", incident="verl#2996", row="logprob-gap",
        reported=lambda token, logits: float(logits.double().log_softmax(-1)[token])),
    row("LogprobsBeforeFilters", "Draws from the filtered distribution and reports log-probs of the whole one.",
        "infer.sampling.top_k", "infer.sampling.top_p", "infer.sampling.every_token", incident="vime#64",
        row="logprob-gap",
        reported=lambda seat, token, logits: float(drawn(seat, logits, top_k=0, top_p=1.0)[token])),
    row("SeedPlusPlace", "Makes the random number of a token from seed + place: neighbouring seeds share all but one.",
        "infer.sampling.independent",
        number=lambda original, seat: uniform(seat.seed + seat.index, 0) if isinstance(seat.seed, int)
            else original(seat)),
    row("OneNumberPerRequest", "Uses a request's first random number for each of its tokens.",
        "infer.sampling.independent", number=lambda seat: uniform(seat.seed, 0)),
    row("SeedOfTheRequestId", "Mixes the request's id into its seed.", "infer.sampling.seed",
        "infer.sampling.seed_continues",
        number=lambda seat: uniform(f"{seat.seed}/{seat.request.request_id}", seat.index)),
    row("OneGeneratorForAll", "Seeds one generator that all requests draw from: company changes the tokens.",
        "infer.sampling.seed",
        number=lambda self, seat: uniform(seat.seed, seat.index if len(self.running) == 1 else self.num_tokens)),
    row("SeedOf32Bits", "Keeps the lower 32 bits of a seed.", "infer.sampling.seeds_differ",
        number=lambda original, seat: uniform(seat.seed & 0xFFFFFFFF, seat.index) if isinstance(seat.seed, int)
            else original(seat)),
    row("SeedAsFloat", "Lets a seed pass through a float: those above 2**53 fall together.",
        "infer.sampling.seeds_differ",
        number=lambda original, seat: uniform(int(float(seat.seed)), seat.index) if isinstance(seat.seed, int)
            else original(seat)),
    row("ContinuesFromTheFirstNumber", "Begins a seed anew when a request is continued.",
        "infer.sampling.seed_continues", "infer.sampling.continued_afresh", incident="NeMo-RL#3599",
        row="trained-as-submitted", number=lambda seat: uniform(seat.seed, len(seat.output))),
    row("NoSeedIsSeedZero", "Takes seed 0 where none is given: a group of requests is one output many times.",
        "infer.sampling.unseeded",
        seat_for=then(lambda result, request: setattr(result, "seed", request.sampling.seed or 0))),
    row("ReportsTheLikeliest",
        "Reports the log-prob of the likeliest token in place of the one drawn, where top_k is on.",
        "infer.sampling.top_k",
        reported=lambda seat, token, logprobs: float(logprobs.max() if seat.request.sampling.top_k
            else logprobs[token])),
    row("KeepsOneMoreThanK", "Keeps k + 1 tokens.", "infer.sampling.top_k",
        distribution=lambda seat, logits: drawn(seat, logits,
            top_k=seat.request.sampling.top_k + (seat.request.sampling.top_k > 1))),
    row("FiltersTheFirstTokenOnly", "Applies top_k and top_p to the first token of an output and to no other.",
        "infer.sampling.every_token",
        distribution=lambda original, seat, logits: drawn(seat, logits, top_k=0, top_p=1.0) if seat.output
            else original(seat, logits)),
    row("TemperatureOfTheFirstRow", "Applies one request's temperature to the whole batch.",
        "infer.sampling.temperature", "infer.sampling.every_token",
        distribution=lambda self, seat, logits: drawn(seat, logits, temperature=seat.request.sampling.temperature
            and (self.running[0].request.sampling.temperature or seat.request.sampling.temperature))),
    row("GreedyAfterMinP", "Reports the log-prob of a greedy token among what min_p leaves.",
        "infer.sampling.greedy_min_p",
        distribution=after(lambda result, seat: result if seat.request.sampling.temperature
            else min_p(result, seat.request.sampling.min_p).log_softmax(-1))),
)  # fmt: skip


@breaks("distribution", "infer.sampling.min_p")
def MinPIsAbsolute(seat: Seat, logits: Tensor) -> Any:
    """Rules out tokens below min_p itself, not below that share of the likeliest."""
    sampling = seat.request.sampling
    whole = distribution(logits, attrs.evolve(sampling, min_p=0.0), seat.forbidden)
    rare = whole.exp() < min(sampling.min_p, float(whole.exp().max()))
    return whole.masked_fill(rare, -torch.inf).log_softmax(-1) if sampling.temperature else whole


@breaks("distribution", "infer.sampling.min_p")
def MinPBeforeTemperature(seat: Seat, logits: Tensor) -> Any:
    """Takes min_p of the distribution at temperature 1, and warms what is left."""
    sampling = seat.request.sampling
    return drawn(seat, min_p(logits.double(), sampling.min_p) if sampling.temperature else logits, min_p=0.0)


@breaks("distribution", "infer.sampling.min_p_filters")
def MinPAfterTopP(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes top_p of all tokens, and min_p of what is left."""
    sampling = seat.request.sampling
    if not sampling.temperature:
        return original()
    plain = distribution(logits, attrs.evolve(sampling, min_p=0.0, top_k=0, top_p=1.0), seat.forbidden)
    return min_p(top_p(top_k(plain, sampling.top_k), sampling.top_p), sampling.min_p).log_softmax(-1)


class _TwoDistributions(SecondInferenceEngine):
    """Keeps the logits of before the penalties at hand; base of the mutants below."""

    def penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        self.before = logits
        return super().penalised(seat, logits)

    def _unpenalised(self, seat: Seat) -> Tensor:
        return super().distribution(seat, self.before)


@breaks("penalised", "infer.sampling.penalties")
def PenaltiesAfterTemperature(original: Original, seat: Seat, logits: Tensor) -> Any:
    """Takes penalties off logits that were divided by the temperature already."""
    heat = seat.request.sampling.temperature or 1.0
    return original(seat, logits.double() / heat) * heat


@breaks("penalised", "infer.sampling.repetition_penalty")
def DividesNegativeLogits(seat: Seat, logits: Tensor) -> Any:
    """Divides every logit by the repetition penalty: a negative one becomes likelier."""
    scores, rate = logits.double().clone(), seat.request.sampling.repetition_penalty
    scores[list(set(seat.ids))] /= rate
    return penalised(scores, SamplingParams(), (), ())


@breaks("penalised", "infer.sampling.repetition_penalty")
def RepetitionPerOccurrence(seat: Seat, logits: Tensor) -> Any:
    """Applies the repetition penalty once for each time a token came."""
    for token in seat.ids:
        logits = penalised(logits, seat.request.sampling, (token,), ())
    return logits


PENALTIES_ROWS = breaks.rows(
    row("CountsThePrompt", "Counts the prompt for frequency and presence too.", "infer.sampling.penalties",
        penalised=lambda seat, logits: penalised(logits, seat.request.sampling, (), seat.ids)),
    row("FrequencyIsPresence", "Takes the frequency penalty off once, however often a token came.",
        "infer.sampling.penalties",
        penalised=lambda seat, logits: penalised(logits, seat.request.sampling, seat.prompt,
            list(dict.fromkeys(seat.produced)))),
    row("LogprobsBeforePenalties", "Draws after penalties and reports log-probs of before.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty", row="logprob-gap", base=_TwoDistributions,
        reported=lambda self, seat, token: float(self._unpenalised(seat)[token])),
    row("DrawsBeforePenalties", "Reports log-probs of after the penalties and draws without them.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty", row="logprob-gap", base=_TwoDistributions,
        choose=lambda original, self, seat, logprobs: original(seat, self._unpenalised(seat)
            if seat.request.sampling.temperature else logprobs)),
    row("GreedyWithoutPenalties", "Takes the likeliest token of before the penalties where the temperature is 0.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty",
        penalised=lambda original, seat, logits: original(seat, logits) if seat.request.sampling.temperature
            else logits),
    row("PenaltiesOfTheFirstRow", "Applies one request's penalties to the whole batch.", "infer.sampling.penalties",
        "infer.sampling.repetition_penalty",
        penalised=lambda self, seat, logits: penalised(logits, self.running[0].request.sampling, seat.prompt,
            seat.produced)),
    row("PauseForgetsTheCounts", "Counts anew after a pause.", "infer.sampling.penalties_paused",
        pause=then(lambda self: setattr(self, "forgotten", {id(seat): len(seat.output) for seat in self.running})),
        penalised=lambda self, seat, logits: penalised(logits, seat.request.sampling, seat.prompt,
            [token.id for token in seat.output[self.__dict__.get("forgotten", {}).get(id(seat), 0) :]])),
    row("CountsFromTheContinuation",
        "Counts the tokens of this call alone: a continued request may repeat what it said before.",
        "infer.sampling.penalties_continued",
        penalised=lambda seat, logits: penalised(logits, seat.request.sampling, seat.request.input_ids,
            [token.id for token in seat.output])),
    row("RepetitionOfTheOutputAlone", "Does not count the prompt as said already.",
        "infer.sampling.repetition_penalty",
        penalised=lambda seat, logits: penalised(logits, seat.request.sampling, (), seat.produced)),
    row("RepetitionOfThePromptAlone", "Counts only the prompt as said already.", "infer.sampling.repetition_penalty",
        penalised=lambda seat, logits: penalised(logits, seat.request.sampling, seat.prompt, ())),
    row("BeginsTheSeedAnew",
        "Does not claim that seeds continue, and draws a continuation with the first part's random numbers.",
        "infer.sampling.continued_afresh", claims=without("sampling.seed_continues"),
        number=lambda seat: uniform(seat.seed, len(seat.output))),
    row("PresenceIsFrequency", "Takes the presence penalty off as often as a token came.", "infer.sampling.penalties",
        penalised=lambda seat, logits: lowered(seat, logits, presence_penalty=0.0,
            frequency_penalty=seat.request.sampling.frequency_penalty + seat.request.sampling.presence_penalty)),
    row("NeverEncourages", "Takes a negative penalty for none.", "infer.sampling.penalties",
        penalised=lambda seat, logits: lowered(seat, logits,
            frequency_penalty=max(0.0, seat.request.sampling.frequency_penalty),
            presence_penalty=max(0.0, seat.request.sampling.presence_penalty))),
)  # fmt: skip
