"""Engines that end outputs wrongly: end tokens, stop tokens, stop strings, minimum length.

Knows: what ends an output of the second inference engine.
Does not know: how it is caught.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.inference import GenerationRequest
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.sampling import distribution


@mutant("infer/second", killers=("infer.sampling.end_at_budget", "infer.sampling.stop_tokens"))
class BudgetBeforeEnd(SecondInferenceEngine):
    """Says `length` wherever the budget is used up, also where the last token is an end."""

    def _end(self, seat: Seat) -> StopReason | None:
        return StopReason.LENGTH if len(seat.output) >= seat.limit else super()._end(seat)


@mutant("infer/second", killers=("infer.sampling.several_ends",))
class OneEndTokenOnly(SecondInferenceEngine):
    """Knows one end token where generation_config.json lists several."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        own = self._require().shape.end_ids
        seat.end_ids = tuple(token for token in seat.end_ids if token not in own[1:])
        return seat


@mutant("infer/second", killers=("infer.sampling.ignore_eos",))
class IgnoringTheEndForbidsIt(SecondInferenceEngine):
    """Goes on past end tokens by never drawing one: the distribution is another than asked for."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        banned = self._require().shape.end_ids if seat.request.sampling.ignore_eos else seat.forbidden
        return distribution(logits, seat.request.sampling, banned)


@mutant("infer/second", killers=("infer.sampling.ignore_eos",))
class IgnoresTheEndOfAll(SecondInferenceEngine):
    """Ignores end tokens for the whole batch as soon as one request asks for it."""

    def _end(self, seat: Seat) -> StopReason | None:
        found = super()._end(seat)
        ignoring = any(other.request.sampling.ignore_eos for other in self._running)
        return None if found is StopReason.STOP and ignoring and len(seat.output) < seat.limit else found


@mutant("infer/second", killers=("infer.sampling.stop_tokens_and_end",))
class StopTokensReplaceTheEnd(SecondInferenceEngine):
    """Takes stop_token_ids in place of the model's end tokens."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        seat.end_ids = request.sampling.stop_token_ids or seat.end_ids
        return seat


@mutant("infer/second", killers=("infer.sampling.stop_tokens_and_end",))
class IgnoringTheEndIgnoresStops(SecondInferenceEngine):
    """Takes ignore_eos to mean stop tokens too."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        seat.end_ids = () if request.sampling.ignore_eos else seat.end_ids
        return seat


@mutant("infer/second", killers=("infer.sampling.stop_tokens",))
class FirstStopTokenOnly(SecondInferenceEngine):
    """Looks at the first of several stop tokens."""

    def _seat(self, request: GenerationRequest) -> Seat:
        first = attrs.evolve(request.sampling, stop_token_ids=request.sampling.stop_token_ids[:1])
        return super()._seat(attrs.evolve(request, sampling=first))


@mutant("infer/second", killers=("infer.sampling.stop_tokens",))
class StopTokenIsTakenOut(SecondInferenceEngine):
    """Takes the stop token out of the output, unless it is all there is: nothing tells the trainer how it ended."""

    def _finish(self, seat: Seat, reason: StopReason) -> None:
        if reason is StopReason.STOP and len(seat.output) > 1:
            seat.output.pop()
        super()._finish(seat, reason)


@mutant("infer/second", killers=("infer.sampling.min_tokens",))
class MinimumForgetsPriorTokens(SecondInferenceEngine):
    """Counts only the tokens of this call towards the minimum length."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        early = len(seat.output) < seat.request.sampling.min_new_tokens
        return distribution(logits, seat.request.sampling, seat.end_ids if early else ())


@mutant("infer/second", killers=("infer.sampling.min_tokens",))
class MinimumIsOneShort(SecondInferenceEngine):
    """Lets an output end one token before its minimum."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        early = seat.index < seat.request.sampling.min_new_tokens - 1
        return distribution(logits, seat.request.sampling, seat.end_ids if early else ())


@mutant("infer/second", killers=("infer.sampling.min_tokens",), incident="verl#2996", row="logprob-gap")
class LogprobsBeforeTheMinimum(SecondInferenceEngine):
    """Reports log-probs of the distribution in which the forbidden end token still has its share."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(distribution(logits, seat.request.sampling)[token])


@mutant("infer/second", killers=("infer.sampling.min_tokens",))
class MinimumByDrawingOn(SecondInferenceEngine):
    """Reaches the minimum length by going on after an end token instead of not drawing it."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        return distribution(logits, seat.request.sampling)

    def _end(self, seat: Seat) -> StopReason | None:
        found = super()._end(seat)
        early = seat.index <= seat.request.sampling.min_new_tokens
        return None if found is StopReason.STOP and early else found


@mutant("infer/second", killers=("infer.sampling.min_tokens_stops",))
class MinimumIsForTheEndAlone(SecondInferenceEngine):
    """Forbids the end token below the minimum length, and lets stop tokens end the output."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        own = self._require().shape.end_ids
        return distribution(logits, seat.request.sampling, tuple(set(own) & set(seat.forbidden)))


@mutant("infer/second", killers=("infer.sampling.min_tokens_filtered",))
class FiltersBeforeForbidding(SecondInferenceEngine):
    """Filters among all tokens and forbids the end token after that, if anything else is left."""

    def _distribution(self, seat: Seat, logits: Tensor) -> Tensor:
        whole = distribution(logits, seat.request.sampling)
        if not seat.forbidden:
            return whole
        rest = whole.index_fill(0, torch.tensor(seat.forbidden), -torch.inf)
        return rest.log_softmax(-1) if bool(torch.isfinite(rest).any()) else super()._distribution(seat, logits)


@mutant("infer/second", killers=("infer.sampling.ends_apart",))
class EndsOfTheWholeBatch(SecondInferenceEngine):
    """Ends a request at the stop tokens of whatever runs beside it."""

    def _end(self, seat: Seat) -> StopReason | None:
        stops = {token for other in self._running for token in other.request.sampling.stop_token_ids}
        return StopReason.STOP if seat.output[-1].id in stops else super()._end(seat)


class _Reads(Seat):
    """A seat that looks for stop strings in some of its tokens; base of the mutants below."""

    def seen(self) -> tuple[list[int], list[int]]:
        """Return the tokens read before the last one came, and after."""
        produced = self.ids[len(self.request.input_ids) - self.request.num_prior :]
        return produced[:-1], produced

    def completes_stop(self) -> bool:
        sampling = self.request.sampling
        if not sampling.stop or self.index < sampling.min_new_tokens or self.tokenizer is None:
            return False
        before, after = (self.tokenizer.decode(ids, skip_special_tokens=False) if ids else "" for ids in self.seen())
        return any(after.count(string) > before.count(string) for string in sampling.stop)


class _OwnSeats(SecondInferenceEngine):
    """The second engine with seats of another class."""

    seats: type[Seat] = _Reads

    def _seat(self, request: GenerationRequest) -> Seat:
        plain = super()._seat(request)
        names = [field.name for field in attrs.fields(Seat)]
        return self.seats(**{name: getattr(plain, name) for name in names})


@mutant("infer/second", killers=("infer.sampling.stop_strings", "infer.sampling.stop_tokens"))
class StoppingTokenCountsNothing(SecondInferenceEngine):
    """Reports log-prob 0 for the token that ends an output."""

    def _finish(self, seat: Seat, reason: StopReason) -> None:
        if reason is StopReason.STOP:
            seat.output[-1] = attrs.evolve(seat.output[-1], logprob=0.0)
        super()._finish(seat, reason)


@mutant("infer/second", killers=("infer.sampling.stop_strings",))
class StopStringWithinOneToken(_OwnSeats):
    """Finds a stop string only where one token holds all of it."""

    class seats(_Reads):
        def seen(self) -> tuple[list[int], list[int]]:
            return [], self.ids[-1:]


@mutant("infer/second", killers=("infer.sampling.stop_strings_prior",))
class StopStringForgetsPriorTokens(_OwnSeats):
    """Does not look for stop strings that begin in prior tokens."""

    class seats(_Reads):
        def seen(self) -> tuple[list[int], list[int]]:
            mine = [token.id for token in self.output]
            return mine[:-1], mine


@mutant("infer/second", killers=("infer.sampling.stop_strings_prior",))
class StopStringBeginsInThePrompt(_OwnSeats):
    """Looks for stop strings in prompt and output together."""

    class seats(_Reads):
        def seen(self) -> tuple[list[int], list[int]]:
            return self.ids[:-1], self.ids


@mutant("infer/second", killers=("infer.sampling.stop_strings",))
class FirstStopStringOnly(SecondInferenceEngine):
    """Looks for the first of several stop strings."""

    def _seat(self, request: GenerationRequest) -> Seat:
        first = attrs.evolve(request.sampling, stop=request.sampling.stop[:1])
        return super()._seat(attrs.evolve(request, sampling=first))


@mutant("infer/second", killers=("infer.sampling.stop_strings",))
class StopStringOneTokenLate(SecondInferenceEngine):
    """Looks for stop strings before it adds a token: one more comes out."""

    def _end(self, seat: Seat) -> StopReason | None:
        last = seat.output.pop()
        late = bool(seat.output) and seat.completes_stop()
        seat.output.append(last)
        if late:
            return StopReason.STOP
        return super()._end(seat) if not seat.request.sampling.stop or len(seat.output) >= seat.limit else None


@mutant("infer/second", killers=("infer.sampling.stop_strings_min",))
class StopStringBeforeTheMinimum(_OwnSeats):
    """Ends at a stop string although the output is shorter than its minimum."""

    class seats(_Reads):
        def completes_stop(self) -> bool:
            free = attrs.evolve(self.request.sampling, min_new_tokens=0)
            request, self.request = self.request, attrs.evolve(self.request, sampling=free)
            try:
                return super().completes_stop()
            finally:
                self.request = request


@mutant("infer/second", killers=("infer.sampling.stop_strings_min",))
class StopStringWaitsForTheMinimum(_OwnSeats):
    """Ends as soon as the minimum is reached, for a stop string that was complete long before."""

    class seats(_Reads):
        def seen(self) -> tuple[list[int], list[int]]:
            return [], super().seen()[1]
