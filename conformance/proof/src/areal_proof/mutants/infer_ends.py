"""Engines that end outputs wrongly, or are right for a few tokens and wrong for many.

Knows: what ends an output of the second inference engine, and what depends on where a token stands.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.inference import GenerationRequest, PauseMode
from areal_proof.mutants import mutant
from areal_proof.mutants.infer_sampling import drawn
from areal_proof.mutants.rows import Original, after, before, breaking, given, put, row, then, within
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Slot
from areal_proof.second.infer.sampling import distribution, uniform

breaks = breaking("infer/second", SecondInferenceEngine)


def named_ends(folder: str) -> bool:
    """Tell whether a model folder's generation_config.json names an end token, or is not there."""
    file = Path(folder) / "generation_config.json"
    return not file.is_file() or "eos_token_id" in json.loads(file.read_text())


@breaks("distribution", "infer.sampling.min_tokens_filtered")
def FiltersBeforeForbidding(original: Original, slot: Slot, logits: Tensor) -> Any:
    """Filters among all tokens and forbids the end token after that, if anything else is left."""
    whole = distribution(logits, slot.request.sampling)
    if not slot.forbidden:
        return whole
    rest = whole.index_fill(0, torch.tensor(slot.forbidden), -torch.inf)
    return rest.log_softmax(-1) if bool(torch.isfinite(rest).any()) else original()


class _Reads(Slot):
    """A slot that looks for stop strings in some of its tokens; base of the mutants below."""

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


class _OwnSlots(SecondInferenceEngine):
    """The second engine with slots of another class."""

    slots: type[Slot] = _Reads

    def slot_for(self, request: GenerationRequest) -> Slot:
        plain = super().slot_for(request)
        names = [field.name for field in attrs.fields(Slot)]
        return self.slots(**{name: getattr(plain, name) for name in names})


@breaks("finish", "infer.sampling.stop_strings", "infer.sampling.stop_tokens")
def StoppingTokenCountsNothing(original: Original, slot: Slot, reason: StopReason) -> None:
    """Reports log-prob 0 for the token that ends an output."""
    if reason is StopReason.STOP:
        slot.output[-1] = attrs.evolve(slot.output[-1], logprob=0.0)
    original()


breaks_own_slots = breaking("infer/second", _OwnSlots, part=("slots", _Reads))


@breaks_own_slots("seen", "infer.sampling.stop_strings_prior")
def StopStringForgetsPriorTokens(self: _Reads) -> Any:
    """Does not look for stop strings that begin in prior tokens."""
    mine = [token.id for token in self.output]
    return mine[:-1], mine


@breaks_own_slots("completes_stop", "infer.sampling.stop_strings_control")
def LeavesControlTokensOut(original: Original, self: _Reads) -> Any:
    """Looks for stop strings in the text that people see, without control tokens."""
    whole = self.tokenizer
    self.tokenizer = _Shown(whole)
    try:
        return original()
    finally:
        self.tokenizer = whole


class _Shown:
    """Decodes without control tokens. Any: a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, token_ids: Any, **_options: Any) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))


ROWS = breaks.rows(
    row("BudgetBeforeEnd", "Says `length` wherever the budget is used up, also where the last token is an end.",
        "infer.sampling.end_at_budget", "infer.sampling.stop_tokens",
        end=lambda original, slot: StopReason.LENGTH if len(slot.output) >= slot.limit else original(slot)),
    row("IgnoringTheEndForbidsIt",
        "Goes on past end tokens by never drawing one: the distribution is another than asked for.",
        "infer.sampling.ignore_eos",
        distribution=lambda self, slot, logits: distribution(logits, slot.request.sampling,
            self.require().end_ids if slot.request.sampling.ignore_eos else slot.forbidden)),
    row("IgnoresTheEndOfAll", "Ignores end tokens for the whole batch as soon as one request asks for it.",
        "infer.sampling.ignore_eos",
        end=after(lambda result, self, slot: None if result is StopReason.STOP
            and any(other.request.sampling.ignore_eos for other in self.running) and (len(slot.output) < slot.limit)
            else result)),
    row("StopTokensReplaceTheEnd", "Takes stop_token_ids in place of the model's end tokens.",
        "infer.sampling.stop_tokens_and_end",
        slot_for=then(lambda result, request: setattr(result, "end_ids", request.sampling.stop_token_ids
            or result.end_ids))),
    row("IgnoringTheEndIgnoresStops", "Takes ignore_eos to mean stop tokens too.",
        "infer.sampling.stop_tokens_and_end",
        slot_for=then(lambda result, request: setattr(result, "end_ids", () if request.sampling.ignore_eos
            else result.end_ids))),
    row("FirstStopTokenOnly", "Looks at the first of several stop tokens.", "infer.sampling.stop_tokens",
        slot_for=given(sampling=lambda request: attrs.evolve(request.sampling,
            stop_token_ids=request.sampling.stop_token_ids[:1]))),
    row("StopTokenIsTakenOut",
        "Takes the stop token out of the output, unless it is all there is: nothing tells the trainer how it ended.",
        "infer.sampling.stop_tokens",
        finish=before(lambda slot, reason: slot.output.pop() if reason is StopReason.STOP and len(slot.output) > 1
            else None)),
    row("MinimumForgetsPriorTokens", "Counts only the tokens of this call towards the minimum length.",
        "infer.sampling.min_tokens",
        distribution=lambda slot, logits: distribution(logits, slot.request.sampling, slot.end_ids
            if len(slot.output) < slot.request.sampling.min_new_tokens else ())),
    row("MinimumIsOneShort", "Lets an output end one token before its minimum.", "infer.sampling.min_tokens",
        distribution=lambda slot, logits: distribution(logits, slot.request.sampling, slot.end_ids
            if slot.index < slot.request.sampling.min_new_tokens - 1 else ())),
    row("LogprobsBeforeTheMinimum",
        "Reports log-probs of the distribution in which the forbidden end token still has its share.",
        "infer.sampling.min_tokens", incident="verl#2996", row="logprob-gap",
        reported=lambda slot, token, logits: float(distribution(logits, slot.request.sampling)[token])),
    row("MinimumByDrawingOn", "Reaches the minimum length by going on after an end token instead of not drawing it.",
        "infer.sampling.min_tokens", distribution=lambda slot, logits: distribution(logits, slot.request.sampling),
        end=after(lambda result, slot: None if result is StopReason.STOP
            and slot.index <= slot.request.sampling.min_new_tokens else result)),
    row("MinimumIsForTheEndAlone",
        "Forbids the end token below the minimum length, and lets stop tokens end the output.",
        "infer.sampling.min_tokens_stops",
        distribution=lambda self, slot, logits: distribution(logits, slot.request.sampling,
            tuple(set(self.require().end_ids) & set(slot.forbidden)))),
    row("EndsOfTheWholeBatch", "Ends a request at the stop tokens of whatever runs beside it.",
        "infer.sampling.ends_apart",
        end=lambda original, self, slot: StopReason.STOP if slot.output[-1].id in {token for other in self.running
            for token in other.request.sampling.stop_token_ids} else original(slot)),
    row("FirstStopStringOnly", "Looks for the first of several stop strings.", "infer.sampling.stop_strings",
        slot_for=given(sampling=lambda request: attrs.evolve(request.sampling, stop=request.sampling.stop[:1]))),
    row("NoEndOfConfig", "Ends at no token where generation_config.json is there and names none.",
        "infer.sampling.end_of_config",
        slot_for=then(lambda result, self: setattr(result, "end_ids", result.end_ids
            if named_ends(self.require().spec.model_path) else ()))),
    row("OneEndTokenOnly", "Knows one end token where generation_config.json lists several.",
        "infer.sampling.several_ends",
        slot_for=then(lambda result, self: setattr(result, "end_ids", tuple(token for token in result.end_ids
            if token not in self.require().end_ids[1:])))),
)  # fmt: skip


@breaks("end", "infer.sampling.stop_strings")
def StopStringOneTokenLate(original: Original, slot: Slot) -> Any:
    """Looks for stop strings before it adds a token: one more comes out."""
    last = slot.output.pop()
    late = bool(slot.output) and slot.completes_stop()
    slot.output.append(last)
    if late:
        return StopReason.STOP
    return original() if not slot.request.sampling.stop or len(slot.output) >= slot.limit else None


OWN_SLOTS_ROWS = breaks_own_slots.rows(
    row("StopStringWithinOneToken", "Finds a stop string only where one token holds all of it.",
        "infer.sampling.stop_strings", seen=lambda self: ([], self.ids[-1:])),
    row("StopStringBeginsInThePrompt", "Looks for stop strings in prompt and output together.",
        "infer.sampling.stop_strings_prior", seen=lambda self: (self.ids[:-1], self.ids)),
    row("StopStringWaitsForTheMinimum",
        "Ends as soon as the minimum is reached, for a stop string that was complete long before.",
        "infer.sampling.stop_strings_min", seen=lambda original: ([], original()[1])),
    row("StopStringBeforeTheMinimum", "Ends at a stop string although the output is shorter than its minimum.",
        "infer.sampling.stop_strings_min",
        completes_stop=within(lambda self: put(self, request=attrs.evolve(self.request,
            sampling=attrs.evolve(self.request.sampling, min_new_tokens=0))))),
)  # fmt: skip


@breaks("reported", "infer.concurrent.crowd", row="logprob-gap")
def CrosstalkBeyondSixtyFour(original: Original, self: SecondInferenceEngine) -> Any:
    """Reports the log-prob of a neighbour's last token where more than 64 requests run."""
    own, other = original(), self.running[0]
    crowded = len(self.running) > 64 and bool(other.output)
    return other.output[-1].logprob if crowded else own


class _BlindBelowTheMinimum(Slot):
    def completes_stop(self) -> bool:
        least, text = self.request.sampling.min_new_tokens, self.request.sampling.stop
        if not text or self.index < least or self.tokenizer is None:
            return False
        produced = self.ids[len(self.request.input_ids) - self.request.num_prior :]
        seen = self.tokenizer.decode(produced[max(0, least - 1) :], skip_special_tokens=False)
        return any(string in seen for string in text)


LENGTHS_ROWS = breaks.rows(
    row("StreamOfSixtyFour", "Begins the random numbers of a request again after 64 tokens.", "infer.sampling.stream",
        number=lambda slot: uniform(slot.seed, slot.index % 64)),
    row("ContinuedWithoutStopTokens", "Forgets stop_token_ids where a request is continued.",
        "infer.sampling.continued_stop_tokens",
        slot_for=lambda original, request: original(attrs.evolve(request, sampling=attrs.evolve(request.sampling,
            stop_token_ids=())) if request.num_prior else request)),
    row("EightLettersOfAStop", "Compares the last eight letters of a stop string.", "infer.sampling.stop_strings_long",
        slot_for=given(sampling=lambda request: attrs.evolve(request.sampling,
            stop=tuple(text[-8:] for text in request.sampling.stop)))),
    row("StopStringsBeginAfterTheMinimum",
        "Shows tokens below the minimum length to no stop string: one that begins there is missed.",
        "infer.sampling.stop_strings_across_min",
        slot_for=after(lambda result: _BlindBelowTheMinimum(**{name: getattr(result, name)
            for name in [field.name for field in attrs.fields(Slot)]}))),
    row("AbortDropsTheNewestToken", "Returns all but the newest token of what it aborts.",
        "infer.pause.abort_returns_all", row="trained-as-submitted",
        finish=before(lambda slot, reason: slot.output.pop() if reason is StopReason.ABORTED and len(slot.output) > 1
            else None)),
    row("WarmBeyondTwoHundred", "Computes what lies beyond 200 tokens a little too flat.", "infer.output.long",
        incident="vime#64", row="logprob-gap",
        next_logits=after(lambda result, slot: (result[0] * 0.98, result[1]) if len(slot.ids) > 200 else result)),
    row("GreedyNucleusIsCertain", "Reports log-prob 0 for greedy tokens where top_p is set: the nucleus of one.",
        "infer.sampling.greedy_top_p",
        reported=after(lambda result, slot: 0.0 if slot.request.sampling.temperature == 0
            and slot.request.sampling.top_p < 1.0 else result)),
    row("GreedyAmongTheBest", "Renormalises the log-prob of greedy tokens over the k best.",
        "infer.sampling.greedy_top_k",
        distribution=lambda slot, logits: drawn(slot, logits, temperature=slot.request.sampling.temperature or 1.0)),
    row("ContinuedWithoutFilters", "Forgets top_k and top_p where a request is continued.", "infer.sampling.continued",
        row="trained-as-submitted",
        distribution=lambda original, slot, logits: drawn(slot, logits, top_k=0, top_p=1.0)
            if slot.request.num_prior else original(slot, logits)),
    row("FirstContinuedTokenAtOne", "Draws the first token of a continued request at temperature 1.",
        "infer.sampling.continued", row="trained-as-submitted",
        distribution=lambda original, slot, logits: drawn(slot, logits, temperature=1.0) if slot.request.num_prior
            and not slot.output and slot.request.sampling.temperature else original(slot, logits)),
)  # fmt: skip


@mutant("infer/second", killers=("infer.cancel.while_paused",))
class CancelWaitsForResume(SecondInferenceEngine):
    """Keeps the place of a request that is cancelled during a pause until it is resumed."""

    def leave(self, slot: Slot) -> None:
        if self.paused and slot.caller.cancelled():
            vars(self).setdefault("late", []).append(slot)
        else:
            super().leave(slot)

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        if mode is PauseMode.ABORT:
            self._let_go()

    async def resume(self) -> None:
        self._let_go()
        await super().resume()

    def _let_go(self) -> None:
        for slot in vars(self).pop("late", []):
            super().leave(slot)
