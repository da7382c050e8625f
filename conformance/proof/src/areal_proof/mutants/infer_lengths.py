"""Engines that are right for a few tokens and wrong for many, or wrong where a request is continued.

Knows: how drawing, reporting and stopping of the second inference engine depend on where a token stands.
Does not know: how it is caught.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.inference import GenerationRequest, PauseMode
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, uniform


@mutant("infer/second", killers=("infer.output.long",), incident="vime#64", row="logprob-gap")
class WarmBeyondTwoHundred(SecondInferenceEngine):
    """Computes what lies beyond 200 tokens a little too flat."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        logits, routes = super()._next_logits(seat)
        return (logits * 0.98 if len(seat.ids) > 200 else logits), routes


@mutant("infer/second", killers=("infer.concurrent.crowd",), row="logprob-gap")
class CrosstalkBeyondSixtyFour(SecondInferenceEngine):
    """Reports the log-prob of a neighbour's last token where more than 64 requests run."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        own, other = super()._reported(seat, token, logits, logprobs), self._running[0]
        crowded = len(self._running) > 64 and bool(other.output)
        return other.output[-1].logprob if crowded else own


@mutant("infer/second", killers=("infer.sampling.stream",))
class StreamOfSixtyFour(SecondInferenceEngine):
    """Begins the random numbers of a request again after 64 tokens."""

    def _number(self, seat: Seat) -> float:
        return uniform(seat.seed, seat.index % 64)


@mutant("infer/second", killers=("infer.sampling.greedy_top_p",))
class GreedyNucleusIsCertain(SecondInferenceEngine):
    """Reports log-prob 0 for greedy tokens where top_p is set: the nucleus of one."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        sampling = seat.request.sampling
        certain = sampling.temperature == 0 and sampling.top_p < 1.0
        return 0.0 if certain else super()._reported(seat, token, logits, logprobs)


@mutant("infer/second", killers=("infer.sampling.greedy_top_k",))
class GreedyAmongTheBest(SecondInferenceEngine):
    """Renormalises the log-prob of greedy tokens over the k best."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        return distribution(logits, attrs.evolve(sampling, temperature=sampling.temperature or 1.0), seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.continued",), row="trained-as-submitted")
class ContinuedWithoutFilters(SecondInferenceEngine):
    """Forgets top_k and top_p where a request is continued."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        if seat.request.num_prior:
            sampling = attrs.evolve(sampling, top_k=0, top_p=1.0)
        return distribution(logits, sampling, seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.continued",), row="trained-as-submitted")
class FirstContinuedTokenAtOne(SecondInferenceEngine):
    """Draws the first token of a continued request at temperature 1."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        sampling = seat.request.sampling
        if seat.request.num_prior and not seat.output and sampling.temperature:
            sampling = attrs.evolve(sampling, temperature=1.0)
        return distribution(logits, sampling, seat.forbidden)


@mutant("infer/second", killers=("infer.sampling.continued_stop_tokens",))
class ContinuedWithoutStopTokens(SecondInferenceEngine):
    """Forgets stop_token_ids where a request is continued."""

    def _seat(self, request: GenerationRequest) -> Seat:
        own = attrs.evolve(request.sampling, stop_token_ids=())
        return super()._seat(attrs.evolve(request, sampling=own) if request.num_prior else request)


@mutant("infer/second", killers=("infer.sampling.stop_strings_long",))
class EightLettersOfAStop(SecondInferenceEngine):
    """Compares the last eight letters of a stop string."""

    def _seat(self, request: GenerationRequest) -> Seat:
        short = tuple(text[-8:] for text in request.sampling.stop)
        return super()._seat(attrs.evolve(request, sampling=attrs.evolve(request.sampling, stop=short)))


class _BlindBelowTheMinimum(Seat):
    def completes_stop(self) -> bool:
        least, text = self.request.sampling.min_new_tokens, self.request.sampling.stop
        if not text or self.index < least or self.tokenizer is None:
            return False
        produced = self.ids[len(self.request.input_ids) - self.request.num_prior :]
        seen = self.tokenizer.decode(produced[max(0, least - 1) :], skip_special_tokens=False)
        return any(string in seen for string in text)


@mutant("infer/second", killers=("infer.sampling.stop_strings_across_min",))
class StopStringsBeginAfterTheMinimum(SecondInferenceEngine):
    """Shows tokens below the minimum length to no stop string: one that begins there is missed."""

    def _seat(self, request: GenerationRequest) -> Seat:
        plain = super()._seat(request)
        names = [field.name for field in attrs.fields(Seat)]
        return _BlindBelowTheMinimum(**{name: getattr(plain, name) for name in names})


@mutant("infer/second", killers=("infer.pause.abort_returns_all",), row="trained-as-submitted")
class AbortDropsTheNewestToken(SecondInferenceEngine):
    """Returns all but the newest token of what it aborts."""

    def _finish(self, seat: Seat, reason: StopReason) -> None:
        if reason is StopReason.ABORTED and len(seat.output) > 1:
            seat.output.pop()
        super()._finish(seat, reason)


@mutant("infer/second", killers=("infer.cancel.while_paused",))
class CancelWaitsForResume(SecondInferenceEngine):
    """Keeps the place of a request that is cancelled during a pause until it is resumed."""

    def _leave(self, seat: Seat) -> None:
        if self._paused and seat.caller.cancelled():
            vars(self).setdefault("late", []).append(seat)
        else:
            super()._leave(seat)

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        if mode is PauseMode.ABORT:
            self._let_go()

    async def resume(self) -> None:
        self._let_go()
        await super().resume()

    def _let_go(self) -> None:
        for seat in vars(self).pop("late", []):
            super()._leave(seat)
