"""Engines that sample wrongly: filters, temperatures, seeds, min-p, penalties.

Knows: the second inference engine's steps from logits to a token.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import ArealError, GenerationFailed
from areal_core.contract.inference import GenerationRequest, SamplingParams
from areal_proof.mutants.rows import Original, after, breaking, catches, given, row, then, without
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Slot
from areal_proof.second.infer.sampling import distribution, draw, min_p, penalised, top_k, top_p, uniform

breaks = breaking("infer/second", SecondInferenceEngine)


def asked(request: GenerationRequest, **sampling: Any) -> GenerationRequest:
    """Return a request that asks for other sampling. Any: whatever the parameters are."""
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, **sampling))


def drawn(slot: Slot, logits: Tensor, **sampling: Any) -> Tensor:
    """Return what a slot is drawn from, were other parameters asked for. Any: whatever the parameters are."""
    return distribution(logits, attrs.evolve(slot.request.sampling, **sampling), slot.forbidden)


def lowered(slot: Slot, logits: Tensor, **sampling: Any) -> Tensor:
    """Return the logits of a slot after penalties, were other ones asked for. Any: whatever the parameters are."""
    return penalised(logits, attrs.evolve(slot.request.sampling, **sampling), slot.prompt, slot.produced)


@breaks("choose", "infer.sampling.temperature", "infer.sampling.surprise")
def DrawsAtTemperatureOne(original: Original, slot: Slot, logprobs: Tensor) -> Any:
    """Reports log-probs at the temperature asked for and draws at temperature 1."""
    heat = slot.request.sampling.temperature
    return original(slot, (logprobs * heat).log_softmax(-1) if heat else logprobs)


@breaks("distribution", "infer.sampling.top_p")
def DropsTheTokenThatReachesP(slot: Slot, logits: Tensor) -> Any:
    """Keeps the tokens below p, and not the one with which p is reached."""
    sampling = slot.request.sampling
    whole = distribution(logits, attrs.evolve(sampling, top_p=1.0), slot.forbidden)
    if sampling.top_p == 1.0 or not sampling.temperature:
        return whole
    ranked, order = whole.sort(descending=True)
    kept = max(1, int((ranked.exp().cumsum(-1) <= sampling.top_p).sum()))
    return whole.index_fill(0, order[kept:], -torch.inf).log_softmax(-1)


@breaks("distribution", "infer.sampling.top_p", "infer.sampling.filters")
def FiltersBeforeTemperature(original: Original, slot: Slot, logits: Tensor) -> Any:
    """Takes top_k and top_p of the distribution at temperature 1, and warms what is left."""
    heat = slot.request.sampling.temperature
    return (drawn(slot, logits, temperature=1.0) / heat).log_softmax(-1) if heat else original()


@breaks("distribution", "infer.sampling.filters")
def TopPBeforeTopK(original: Original, slot: Slot, logits: Tensor) -> Any:
    """Takes top_p of all tokens, and then the k best of what is left."""
    sampling = slot.request.sampling
    if not sampling.temperature:
        return original()
    plain = distribution(logits, attrs.evolve(sampling, top_k=0, top_p=1.0), slot.forbidden)
    return top_k(top_p(plain, sampling.top_p), sampling.top_k).log_softmax(-1)


@breaks("choose", "infer.sampling.surprise")
def DrawsAreSquared(original: Original, self: SecondInferenceEngine, slot: Slot, logprobs: Tensor) -> Any:
    """Draws every second token with a random number that is not uniform: likely tokens come too often."""
    if not slot.request.sampling.temperature:
        return original()
    order, number = logprobs.argsort(descending=True), self.number(slot)
    return int(order[draw(logprobs[order], number * number if slot.index % 2 else number)])


def _within(sampling: SamplingParams, most: float) -> SamplingParams:
    """Return numbers that are nowhere beyond their range, and penalties of so much at most."""
    ranges = {"temperature": (0.0, 1e6), "top_p": (1e-6, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.01, 2.0)}
    ranges |= {"frequency_penalty": (-most, most), "presence_penalty": (-most, most)}
    return attrs.evolve(sampling, **{n: min(max(getattr(sampling, n), a), b) for n, (a, b) in ranges.items()})


ROWS = breaks.rows(
    row("WarmsUpOnlyOnce", "Draws the first token at the temperature asked for and the later ones a little colder.",
        "infer.sampling.surprise",
        choose=lambda original, slot, logprobs: original(slot, (logprobs * 1.5).log_softmax(-1) if slot.output
            else logprobs)),
    row("LogprobsBeforeTemperature", "Draws at the temperature asked for and reports log-probs at temperature 1.",
        "infer.sampling.temperature", incident="verl#2996", row="logprob-gap",
        reported=lambda token, logits: float(logits.double().log_softmax(-1)[token])),
    row("LogprobsBeforeFilters", "Draws from the filtered distribution and reports log-probs of the whole one.",
        "infer.sampling.top_k", "infer.sampling.top_p", "infer.sampling.every_token", incident="vime#64",
        row="logprob-gap",
        reported=lambda slot, token, logits: float(drawn(slot, logits, top_k=0, top_p=1.0)[token])),
    row("SeedPlusPlace", "Makes the random number of a token from seed + place: neighbouring seeds share all but one.",
        "infer.sampling.independent",
        number=lambda original, slot: uniform(slot.seed + slot.index, 0) if isinstance(slot.seed, int)
            else original(slot)),
    row("OneNumberPerRequest", "Uses a request's first random number for each of its tokens.",
        "infer.sampling.independent", number=lambda slot: uniform(slot.seed, 0)),
    row("SeedOfTheRequestId", "Mixes the request's id into its seed.", "infer.sampling.seed",
        "infer.sampling.seed_continues",
        number=lambda slot: uniform(f"{slot.seed}/{slot.request.request_id}", slot.index)),
    row("OneGeneratorForAll", "Seeds one generator that all requests draw from: company changes the tokens.",
        "infer.sampling.seed",
        number=lambda self, slot: uniform(slot.seed, slot.index if len(self.running) == 1 else self.num_tokens)),
    row("SeedOf32Bits", "Keeps the lower 32 bits of a seed.", "infer.sampling.seeds_differ",
        number=lambda original, slot: uniform(slot.seed & 0xFFFFFFFF, slot.index) if isinstance(slot.seed, int)
            else original(slot)),
    row("SeedAsFloat", "Lets a seed pass through a float: those above 2**53 fall together.",
        "infer.sampling.seeds_differ",
        number=lambda original, slot: uniform(int(float(slot.seed)), slot.index) if isinstance(slot.seed, int)
            else original(slot)),
    row("ContinuesFromTheFirstNumber", "Begins a seed anew when a request is continued.",
        "infer.sampling.seed_continues", "infer.sampling.continued_afresh", incident="NeMo-RL#3599",
        row="trained-as-submitted", number=lambda slot: uniform(slot.seed, len(slot.output))),
    row("NoSeedIsSeedZero", "Takes seed 0 where none is given: a group of requests is one output many times.",
        "infer.sampling.unseeded",
        slot_for=then(lambda result, request: setattr(result, "seed", request.sampling.seed or 0))),
    row("ReportsTheLikeliest",
        "Reports the log-prob of the likeliest token in place of the one drawn, where top_k is on.",
        "infer.sampling.top_k",
        reported=lambda slot, token, logprobs: float(logprobs.max() if slot.request.sampling.top_k
            else logprobs[token])),
    row("KeepsOneMoreThanK", "Keeps k + 1 tokens.", "infer.sampling.top_k",
        distribution=lambda slot, logits: drawn(slot, logits,
            top_k=slot.request.sampling.top_k + (slot.request.sampling.top_k > 1))),
    row("FiltersTheFirstTokenOnly", "Applies top_k and top_p to the first token of an output and to no other.",
        "infer.sampling.every_token",
        distribution=lambda original, slot, logits: drawn(slot, logits, top_k=0, top_p=1.0) if slot.output
            else original(slot, logits)),
    row("TemperatureOfTheFirstRow", "Applies one request's temperature to the whole batch.",
        "infer.sampling.temperature", "infer.sampling.every_token",
        distribution=lambda self, slot, logits: drawn(slot, logits, temperature=slot.request.sampling.temperature
            and (self.running[0].request.sampling.temperature or slot.request.sampling.temperature))),
    row("GreedyAfterMinP", "Reports the log-prob of a greedy token among what min_p leaves.",
        "infer.sampling.greedy_min_p",
        distribution=after(lambda result, slot: result if slot.request.sampling.temperature
            else min_p(result, slot.request.sampling.min_p).log_softmax(-1))),
)  # fmt: skip


@breaks("distribution", "infer.sampling.min_p")
def MinPIsAbsolute(slot: Slot, logits: Tensor) -> Any:
    """Rules out tokens below min_p itself, not below that share of the likeliest."""
    sampling = slot.request.sampling
    whole = distribution(logits, attrs.evolve(sampling, min_p=0.0), slot.forbidden)
    rare = whole.exp() < min(sampling.min_p, float(whole.exp().max()))
    return whole.masked_fill(rare, -torch.inf).log_softmax(-1) if sampling.temperature else whole


@breaks("distribution", "infer.sampling.min_p")
def MinPBeforeTemperature(slot: Slot, logits: Tensor) -> Any:
    """Takes min_p of the distribution at temperature 1, and warms what is left."""
    sampling = slot.request.sampling
    return drawn(slot, min_p(logits.double(), sampling.min_p) if sampling.temperature else logits, min_p=0.0)


@breaks("distribution", "infer.sampling.min_p_filters")
def MinPAfterTopP(original: Original, slot: Slot, logits: Tensor) -> Any:
    """Takes top_p of all tokens, and min_p of what is left."""
    sampling = slot.request.sampling
    if not sampling.temperature:
        return original()
    plain = distribution(logits, attrs.evolve(sampling, min_p=0.0, top_k=0, top_p=1.0), slot.forbidden)
    return min_p(top_p(top_k(plain, sampling.top_k), sampling.top_p), sampling.min_p).log_softmax(-1)


class _TwoDistributions(SecondInferenceEngine):
    """Keeps the logits of before the penalties at hand; base of the mutants below."""

    def penalised(self, slot: Slot, logits: Tensor) -> Tensor:
        self.before = logits
        return super().penalised(slot, logits)

    def _unpenalised(self, slot: Slot) -> Tensor:
        return super().distribution(slot, self.before)


@breaks("penalised", "infer.sampling.penalties")
def PenaltiesAfterTemperature(original: Original, slot: Slot, logits: Tensor) -> Any:
    """Takes penalties off logits that were divided by the temperature already."""
    heat = slot.request.sampling.temperature or 1.0
    return original(slot, logits.double() / heat) * heat


@breaks("penalised", "infer.sampling.repetition_penalty")
def DividesNegativeLogits(slot: Slot, logits: Tensor) -> Any:
    """Divides every logit by the repetition penalty: a negative one becomes likelier."""
    scores, rate = logits.double().clone(), slot.request.sampling.repetition_penalty
    scores[list(set(slot.ids))] /= rate
    return penalised(scores, SamplingParams(), (), ())


@breaks("penalised", "infer.sampling.repetition_penalty")
def RepetitionPerOccurrence(slot: Slot, logits: Tensor) -> Any:
    """Applies the repetition penalty once for each time a token came."""
    for token in slot.ids:
        logits = penalised(logits, slot.request.sampling, (token,), ())
    return logits


PENALTIES_ROWS = breaks.rows(
    row("CountsThePrompt", "Counts the prompt for frequency and presence too.", "infer.sampling.penalties",
        penalised=lambda slot, logits: penalised(logits, slot.request.sampling, (), slot.ids)),
    row("FrequencyIsPresence", "Takes the frequency penalty off once, however often a token came.",
        "infer.sampling.penalties",
        penalised=lambda slot, logits: penalised(logits, slot.request.sampling, slot.prompt,
            list(dict.fromkeys(slot.produced)))),
    row("LogprobsBeforePenalties", "Draws after penalties and reports log-probs of before.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty", row="logprob-gap", base=_TwoDistributions,
        reported=lambda self, slot, token: float(self._unpenalised(slot)[token])),
    row("DrawsBeforePenalties", "Reports log-probs of after the penalties and draws without them.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty", row="logprob-gap", base=_TwoDistributions,
        choose=lambda original, self, slot, logprobs: original(slot, self._unpenalised(slot)
            if slot.request.sampling.temperature else logprobs)),
    row("GreedyWithoutPenalties", "Takes the likeliest token of before the penalties where the temperature is 0.",
        "infer.sampling.penalties", "infer.sampling.repetition_penalty",
        penalised=lambda original, slot, logits: original(slot, logits) if slot.request.sampling.temperature
            else logits),
    row("PenaltiesOfTheFirstRow", "Applies one request's penalties to the whole batch.", "infer.sampling.penalties",
        "infer.sampling.repetition_penalty",
        penalised=lambda self, slot, logits: penalised(logits, self.running[0].request.sampling, slot.prompt,
            slot.produced)),
    row("PauseForgetsTheCounts", "Counts anew after a pause.", "infer.sampling.penalties_paused",
        pause=then(lambda self: setattr(self, "forgotten", {id(slot): len(slot.output) for slot in self.running})),
        penalised=lambda self, slot, logits: penalised(logits, slot.request.sampling, slot.prompt,
            [token.id for token in slot.output[self.__dict__.get("forgotten", {}).get(id(slot), 0) :]])),
    row("CountsFromTheContinuation",
        "Counts the tokens of this call alone: a continued request may repeat what it said before.",
        "infer.sampling.penalties_continued",
        penalised=lambda slot, logits: penalised(logits, slot.request.sampling, slot.request.input_ids,
            [token.id for token in slot.output])),
    row("RepetitionOfTheOutputAlone", "Does not count the prompt as said already.",
        "infer.sampling.repetition_penalty",
        penalised=lambda slot, logits: penalised(logits, slot.request.sampling, (), slot.produced)),
    row("RepetitionOfThePromptAlone", "Counts only the prompt as said already.", "infer.sampling.repetition_penalty",
        penalised=lambda slot, logits: penalised(logits, slot.request.sampling, slot.prompt, ())),
    row("BeginsTheSeedAnew",
        "Does not claim that seeds continue, and draws a continuation with the first part's random numbers.",
        "infer.sampling.continued_afresh", claims=without("sampling.seed_continues"),
        number=lambda slot: uniform(slot.seed, len(slot.output))),
    row("PresenceIsFrequency", "Takes the presence penalty off as often as a token came.", "infer.sampling.penalties",
        penalised=lambda slot, logits: lowered(slot, logits, presence_penalty=0.0,
            frequency_penalty=slot.request.sampling.frequency_penalty + slot.request.sampling.presence_penalty)),
    row("NeverEncourages", "Takes a negative penalty for none.", "infer.sampling.penalties",
        penalised=lambda slot, logits: lowered(slot, logits,
            frequency_penalty=max(0.0, slot.request.sampling.frequency_penalty),
            presence_penalty=max(0.0, slot.request.sampling.presence_penalty))),
    row("TakesTheNearest", "Takes the nearest number within its range for one that is beyond.", "infer.range.beyond",
        generate=given(sampling=lambda request: _within(request.sampling, 2.0))),
    row("RefusesNamelessly", "Says of a number beyond its range that the request failed, and not which number.",
        "infer.range.beyond", generate=catches(ArealError, lambda: GenerationFailed("the request failed"))),
    row("EndsOfAnotherRange", "Takes penalties beyond 1.5 for 1.5.", "infer.range.ends",
        generate=given(sampling=lambda request: _within(request.sampling, 1.5))),
)  # fmt: skip
