"""Engines that are right for a few tokens and wrong for many, or wrong where a request is continued.

Knows: how drawing, reporting and stopping of the second inference engine depend on where a token stands.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.inference import PauseMode
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, given, row
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution, uniform

breaks = breaking("infer/second", SecondInferenceEngine)


@breaks("_next_logits", "infer.output.long", incident="vime#64", row="logprob-gap")
def WarmBeyondTwoHundred(original: Original, seat: Seat) -> Any:
    """Computes what lies beyond 200 tokens a little too flat."""
    logits, routes = original()
    return (logits * 0.98 if len(seat.ids) > 200 else logits), routes


@breaks("_reported", "infer.concurrent.crowd", row="logprob-gap")
def CrosstalkBeyondSixtyFour(original: Original, self: SecondInferenceEngine) -> Any:
    """Reports the log-prob of a neighbour's last token where more than 64 requests run."""
    own, other = original(), self._running[0]
    crowded = len(self._running) > 64 and bool(other.output)
    return other.output[-1].logprob if crowded else own


@breaks("_reported", "infer.sampling.greedy_top_p")
def GreedyNucleusIsCertain(original: Original, seat: Seat) -> Any:
    """Reports log-prob 0 for greedy tokens where top_p is set: the nucleus of one."""
    sampling = seat.request.sampling
    certain = sampling.temperature == 0 and sampling.top_p < 1.0
    return 0.0 if certain else original()


@breaks("_distribution", "infer.sampling.greedy_top_k")
def GreedyAmongTheBest(seat: Seat, logits: Tensor) -> Any:
    """Renormalises the log-prob of greedy tokens over the k best."""
    sampling = seat.request.sampling
    return distribution(logits, attrs.evolve(sampling, temperature=sampling.temperature or 1.0), seat.forbidden)


@breaks("_distribution", "infer.sampling.continued", row="trained-as-submitted")
def ContinuedWithoutFilters(seat: Seat, logits: Tensor) -> Any:
    """Forgets top_k and top_p where a request is continued."""
    sampling = seat.request.sampling
    if seat.request.num_prior:
        sampling = attrs.evolve(sampling, top_k=0, top_p=1.0)
    return distribution(logits, sampling, seat.forbidden)


@breaks("_distribution", "infer.sampling.continued", row="trained-as-submitted")
def FirstContinuedTokenAtOne(seat: Seat, logits: Tensor) -> Any:
    """Draws the first token of a continued request at temperature 1."""
    sampling = seat.request.sampling
    if seat.request.num_prior and not seat.output and sampling.temperature:
        sampling = attrs.evolve(sampling, temperature=1.0)
    return distribution(logits, sampling, seat.forbidden)


class _BlindBelowTheMinimum(Seat):
    def completes_stop(self) -> bool:
        least, text = self.request.sampling.min_new_tokens, self.request.sampling.stop
        if not text or self.index < least or self.tokenizer is None:
            return False
        produced = self.ids[len(self.request.input_ids) - self.request.num_prior :]
        seen = self.tokenizer.decode(produced[max(0, least - 1) :], skip_special_tokens=False)
        return any(string in seen for string in text)


ROWS = breaks.rows(
    row("StreamOfSixtyFour", "Begins the random numbers of a request again after 64 tokens.", "infer.sampling.stream",
        _number=lambda seat: uniform(seat.seed, seat.index % 64)),
    row("ContinuedWithoutStopTokens", "Forgets stop_token_ids where a request is continued.",
        "infer.sampling.continued_stop_tokens",
        _seat=lambda original, request: original(attrs.evolve(request, sampling=attrs.evolve(request.sampling,
            stop_token_ids=())) if request.num_prior else request)),
    row("EightLettersOfAStop", "Compares the last eight letters of a stop string.", "infer.sampling.stop_strings_long",
        _seat=given(sampling=lambda request: attrs.evolve(request.sampling,
            stop=tuple(text[-8:] for text in request.sampling.stop)))),
    row("StopStringsBeginAfterTheMinimum",
        "Shows tokens below the minimum length to no stop string: one that begins there is missed.",
        "infer.sampling.stop_strings_across_min",
        _seat=after(lambda result: _BlindBelowTheMinimum(**{name: getattr(result, name)
            for name in [field.name for field in attrs.fields(Seat)]}))),
    row("AbortDropsTheNewestToken", "Returns all but the newest token of what it aborts.",
        "infer.pause.abort_returns_all", row="trained-as-submitted",
        _finish=before(lambda seat, reason: seat.output.pop() if reason is StopReason.ABORTED and len(seat.output) > 1
            else None)),
)  # fmt: skip


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
