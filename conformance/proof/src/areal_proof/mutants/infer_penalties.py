"""Engines whose min-p or penalties are not what was asked for.

Knows: the second inference engine's steps from logits to a token.
Does not know: how it is caught.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from areal_core.contract.inference import PauseMode, SamplingParams
from areal_proof.mutants import mutant
from areal_proof.mutants.infer_refuse import without
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, min_p, penalised, top_k, top_p, uniform


@mutant("infer/second", killers=("infer.sampling.min_p",))
class MinPIsAbsolute(SecondInferenceEngine):
    """Rules out tokens below min_p itself, not below that share of the likeliest."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        whole = distribution(logits, attrs.evolve(sampling, min_p=0.0), seat.forbidden)
        rare = whole.exp() < min(sampling.min_p, float(whole.exp().max()))
        return whole.masked_fill(rare, -torch.inf).log_softmax(-1) if sampling.temperature else whole


@mutant("infer/second", killers=("infer.sampling.min_p",))
class MinPBeforeTemperature(SecondInferenceEngine):
    """Takes min_p of the distribution at temperature 1, and warms what is left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        kept = min_p(logits.double(), sampling.min_p) if sampling.temperature else logits
        return distribution(kept, attrs.evolve(sampling, min_p=0.0), seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.min_p_filters",))
class MinPAfterTopP(SecondInferenceEngine):
    """Takes top_p of all tokens, and min_p of what is left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        if not sampling.temperature:
            return super()._distribution(seat, logits)
        plain = distribution(logits, attrs.evolve(sampling, min_p=0.0, top_k=0, top_p=1.0), seat.forbidden)
        return min_p(top_p(top_k(plain, sampling.top_k), sampling.top_p), sampling.min_p).log_softmax(-1)


@mutant("infer/second", killers=("infer.sampling.greedy_min_p",))
class GreedyAfterMinP(SecondInferenceEngine):
    """Reports the log-prob of a greedy token among what min_p leaves."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        whole = super()._distribution(seat, logits)
        return whole if sampling.temperature else min_p(whole, sampling.min_p).log_softmax(-1)


@mutant("infer/second", killers=("infer.sampling.penalties",))
class CountsThePrompt(SecondInferenceEngine):
    """Counts the prompt for frequency and presence too."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return penalised(logits, seat.request.sampling, (), seat.ids)


@mutant("infer/second", killers=("infer.sampling.penalties",))
class FrequencyIsPresence(SecondInferenceEngine):
    """Takes the frequency penalty off once, however often a token came."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return penalised(logits, seat.request.sampling, seat.prompt, list(dict.fromkeys(seat.produced)))


@mutant("infer/second", killers=("infer.sampling.penalties",))
class PresenceIsFrequency(SecondInferenceEngine):
    """Takes the presence penalty off as often as a token came."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        both = sampling.frequency_penalty + sampling.presence_penalty
        summed = attrs.evolve(sampling, frequency_penalty=both, presence_penalty=0.0)
        return penalised(logits, summed, seat.prompt, seat.produced)


@mutant("infer/second", killers=("infer.sampling.penalties",))
class NeverEncourages(SecondInferenceEngine):
    """Takes a negative penalty for none."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        asked = seat.request.sampling
        frequency, presence = max(0.0, asked.frequency_penalty), max(0.0, asked.presence_penalty)
        bounded = attrs.evolve(asked, frequency_penalty=frequency, presence_penalty=presence)
        return penalised(logits, bounded, seat.prompt, seat.produced)


class _TwoDistributions(SecondInferenceEngine):
    """Keeps the logits of before the penalties at hand; base of the mutants below."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        self.before = logits
        return super()._penalised(seat, logits)

    def _unpenalised(self, seat: Seat) -> Tensor:
        return super()._distribution(seat, self.before)


@mutant("infer/second", killers=("infer.sampling.penalties", "infer.sampling.repetition_penalty"), row="logprob-gap")
class LogprobsBeforePenalties(_TwoDistributions):
    """Draws after penalties and reports log-probs of before."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(self._unpenalised(seat)[token])


@mutant("infer/second", killers=("infer.sampling.penalties", "infer.sampling.repetition_penalty"), row="logprob-gap")
class DrawsBeforePenalties(_TwoDistributions):
    """Reports log-probs of after the penalties and draws without them."""

    def _choose(self, seat: Seat, logprobs: Tensor) -> int:
        return super()._choose(seat, self._unpenalised(seat) if seat.request.sampling.temperature else logprobs)


@mutant("infer/second", killers=("infer.sampling.penalties", "infer.sampling.repetition_penalty"))
class GreedyWithoutPenalties(SecondInferenceEngine):
    """Takes the likeliest token of before the penalties where the temperature is 0."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return super()._penalised(seat, logits) if seat.request.sampling.temperature else logits


@mutant("infer/second", killers=("infer.sampling.penalties",))
class PenaltiesAfterTemperature(SecondInferenceEngine):
    """Takes penalties off logits that were divided by the temperature already."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        heat = seat.request.sampling.temperature or 1.0
        return super()._penalised(seat, logits.double() / heat) * heat


@mutant("infer/second", killers=("infer.sampling.penalties", "infer.sampling.repetition_penalty"))
class PenaltiesOfTheFirstRow(SecondInferenceEngine):
    """Applies one request's penalties to the whole batch."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return penalised(logits, self._running[0].request.sampling, seat.prompt, seat.produced)


@mutant("infer/second", killers=("infer.sampling.penalties_paused",))
class PauseForgetsTheCounts(SecondInferenceEngine):
    """Counts anew after a pause."""

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        self.forgotten = {id(seat): len(seat.output) for seat in self._running}

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        known = self.__dict__.get("forgotten", {}).get(id(seat), 0)
        counted = [token.id for token in seat.output[known:]]
        return penalised(logits, seat.request.sampling, seat.prompt, counted)


@mutant("infer/second", killers=("infer.sampling.penalties_continued",))
class CountsFromTheContinuation(SecondInferenceEngine):
    """Counts the tokens of this call alone: a continued request may repeat what it said before."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        counted = [token.id for token in seat.output]
        return penalised(logits, seat.request.sampling, seat.request.input_ids, counted)


@mutant("infer/second", killers=("infer.sampling.repetition_penalty",))
class RepetitionOfTheOutputAlone(SecondInferenceEngine):
    """Does not count the prompt as said already."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return penalised(logits, seat.request.sampling, (), seat.produced)


@mutant("infer/second", killers=("infer.sampling.repetition_penalty",))
class RepetitionOfThePromptAlone(SecondInferenceEngine):
    """Counts only the prompt as said already."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        return penalised(logits, seat.request.sampling, seat.prompt, ())


@mutant("infer/second", killers=("infer.sampling.repetition_penalty",))
class DividesNegativeLogits(SecondInferenceEngine):
    """Divides every logit by the repetition penalty: a negative one becomes likelier."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        scores, rate = logits.double().clone(), seat.request.sampling.repetition_penalty
        scores[list(set(seat.ids))] /= rate
        return penalised(scores, SamplingParams(), (), ())


@mutant("infer/second", killers=("infer.sampling.repetition_penalty",))
class RepetitionPerOccurrence(SecondInferenceEngine):
    """Applies the repetition penalty once for each time a token came."""

    def _penalised(self, seat: Seat, logits: Tensor) -> Tensor:
        for token in seat.ids:
            logits = penalised(logits, seat.request.sampling, (token,), ())
        return logits


@mutant("infer/second", killers=("infer.sampling.continued_afresh",), claims=without("sampling.seed_continues"))
class BeginsTheSeedAnew(SecondInferenceEngine):
    """Does not claim that seeds continue, and draws a continuation with the first part's random numbers."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed, len(seat.output))
