"""Inference engines that answer wrongly: tokens, log-probs, lengths, ends, other people's outputs.

Knows: how the reference generator's answers can be bent.
Does not know: updates and pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, GenerationFailed, PromptTooLong
from areal_core.contract.inference import (
    FLEET_METRICS,
    KV_USED_SHARE,
    NUM_PREEMPTED,
    PREFIX_HIT_SHARE,
    Generation,
    GenerationRequest,
    VersionSpan,
)
from areal_proof.mutants.infer_core_life import without_last
from areal_proof.mutants.rows import Original, after, before, breaking, catches, given, gives, put, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.loop import GenerationLoop
from areal_reference.infer.rows import RowTable, Ticket
from areal_reference.infer.sampling import sample

breaks = breaking("infer/reference", ReferenceInferenceEngine)


class _RawLoop(GenerationLoop):
    __slots__ = ()

    def draw(self, work):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            logits = self.runner.logits(work)
            tokens, _ = sample(logits, self.rows.sampling(np.arange(self.rows.count)))
            raw = torch.log_softmax(logits.float(), -1).gather(1, tokens.unsqueeze(1))[:, 0]
        return tokens.cpu().numpy(), raw.cpu().numpy()


@breaks("ticket_of", "infer.output.temperature")
def OneTemperatureForAll(original: Original, self: ReferenceInferenceEngine, request: GenerationRequest) -> Any:
    """Draws every request at the temperature of the one that was there first."""
    ticket = original()
    others = [other.request.sampling.temperature for other in self.callers]
    if others and others[0] and request.sampling.temperature:
        sampling = attrs.evolve(request.sampling, temperature=others[0])
        ticket.request = attrs.evolve(request, sampling=sampling)
    return ticket


@breaks("generate", "infer.output.greedy", "infer.output.budget")
async def EchoesThePrompt(original: Original, request: GenerationRequest) -> Any:
    """Returns the prompt before the output."""
    result, ids = await original(), request.input_ids
    spans = tuple(attrs.evolve(s, start=s.start + len(ids), stop=s.stop + len(ids)) for s in result.version_spans)
    first = VersionSpan(start=0, stop=len(ids), version=spans[0].version) if spans else None
    return attrs.evolve(
        result,
        output_ids=(*ids, *result.output_ids),
        logprobs=(*[0.0] * len(ids), *result.logprobs),
        version_spans=(first, *spans) if first else (),
    )


@breaks("generate", "infer.concurrent.same_name")
async def KeyedByName(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Gives two requests of one id in flight one answer."""
    running = vars(self).setdefault("by_name", {})
    if request.request_id in running:
        result: Generation = await asyncio.shield(running[request.request_id])
        return result
    running[request.request_id] = task = asyncio.ensure_future(original())
    try:
        return await task
    finally:
        running.pop(request.request_id, None)


@breaks("ticket_of", "infer.concurrent.shared_prompts", row="token-fidelity")
def PrefixMistakenForThePrompt(original: Original, self: ReferenceInferenceEngine, request: GenerationRequest) -> Any:
    """Takes a prompt for the one running whose first twenty tokens it shares."""
    ticket = original()
    for other in self.callers:
        ids = other.request.input_ids
        if len(ids) >= 20 and ids[:20] == request.input_ids[:20] and len(ids) <= len(request.input_ids):
            ticket.request = attrs.evolve(request, input_ids=ids)
    return ticket


@breaks("ticket_of", "infer.concurrent.shared_prompts", row="token-fidelity")
def ShortPromptEndsLikeItsNeighbour(original: Original, self: ReferenceInferenceEngine, request: Any) -> Any:
    """Gives a short prompt the last token of one that begins alike, while a longer one is there."""
    ticket = original()
    others = [other.request.input_ids for other in self.callers]
    for ids in others:
        if len(ids) < 20 and ids[:-1] == request.input_ids[:-1] and any(len(each) > len(ids) for each in others):
            ticket.request = attrs.evolve(request, input_ids=ids)
    return ticket


class _ForgetfulLoop(GenerationLoop):
    __slots__ = ()

    def _fail_all(self, cause: Exception | None) -> None:
        if cause is not None:
            self.waiting.clear()
        super()._fail_all(cause)


class _UncleanLoop(GenerationLoop):
    __slots__ = ()

    def _fail_all(self, cause: Exception | None) -> None:
        with put(self.runner.cache, clear=lambda _rows: None):
            super()._fail_all(cause)


class _NoMoveLoop(GenerationLoop):
    __slots__ = ()

    def retire(self, gone: Sequence[int]) -> None:
        for index in gone:
            ticket = self.rows.tickets[index]
            if ticket and self.owners.get(ticket.shared) is ticket:
                del self.owners[ticket.shared]
        self.rows.remove(gone)


class _Stack(deque[Ticket]):
    def append(self, ticket: Ticket) -> None:
        self.appendleft(ticket)


class _CrossedRows(RowTable):
    __slots__ = ()

    def record(self, tokens, logprobs, version, now_s):  # type: ignore[no-untyped-def]
        if self.count > 64:
            logprobs = logprobs.copy()
            logprobs[[0, 64]] = logprobs[[64, 0]]
        return super().record(tokens, logprobs, version, now_s)


def _stopping(ticket: Ticket, request: GenerationRequest) -> Ticket:
    ticket.end_ids = (*ticket.end_ids, *request.sampling.stop_token_ids)
    return ticket


ROWS = breaks.rows(
    row("LogprobsOfTheTokenBefore", "Reports each token with the log-prob of the one before it.",
        "infer.output.logprobs", "infer.output.temperature",
        generate=gives(logprobs=lambda result: (*result.logprobs[:1], *result.logprobs[:-1]))),
    row("RawLogprobs", "Reports the log-probs of temperature 1, whatever the temperature drawn at.",
        "infer.output.temperature", row="logprob-gap",
        start=then(lambda self: setattr(self.running.loop, "__class__", _RawLoop))),
    row("GreedyIsNearlyGreedy", "Takes temperature 0 for a low temperature.", "infer.output.greedy",
        generate=lambda original, request: original(attrs.evolve(request,
            sampling=attrs.evolve(request.sampling, temperature=0.5)) if request.sampling.temperature == 0.0
            else request)),
    row("CountsWhatWasPrior", "Counts the prior tokens of a continued request as generated.", "infer.output.continued",
        generate=before(lambda self, request: setattr(self, "prior", self.prior + request.num_prior)), prior=0,
        status=gives(tokens_generated=lambda self, result: result.tokens_generated + self.prior)),
    row("ReturnsThePriorAgain", "Counts the prior tokens of a continued request against its budget.",
        "infer.output.continued", incident="miles#353", row="token-fidelity",
        generate=lambda original, request: original(attrs.evolve(request,
            sampling=attrs.evolve(request.sampling, max_new_tokens=max(1,
            request.sampling.max_new_tokens - request.num_prior))) if request.num_prior else request)),
    row("OneTokenTooMany", "Stops one token after the budget.", "infer.output.budget",
        generate=given(sampling=lambda request: attrs.evolve(request.sampling,
            max_new_tokens=request.sampling.max_new_tokens + 1))),
    row("ContextEndsOneEarly", "Leaves the last position of the context unused.", "infer.output.context_end",
        ticket_of=then(lambda result, running, request: setattr(result, "limit",
            max(1, min(result.limit, running.loaded.context_length - len(request.input_ids) - 1))))),
    row("CutsLongPrompts", "Cuts a prompt that is too long down to what fits, and says nothing.",
        "infer.output.prompt_too_long",
        generate=given(input_ids=lambda request,
            self: request.input_ids[-(self.running.loaded.context_length - 1) :])),
    row("TooLongIsAFailure", "Reports a prompt that is too long as a failure worth trying elsewhere.",
        "infer.output.prompt_too_long", row="failed-is-typed",
        generate=catches(PromptTooLong, lambda error: GenerationFailed(str(error)))),
    row("UnfitIsAnIndexError", "Lets an unfit request fail with whatever the array library raises.",
        "infer.output.unfit_request", row="failed-is-typed",
        generate=catches(BatchError, lambda request: IndexError(f"index out of range: {request.input_ids}"))),
    row("StrangeStopsAreTaken", "Looks at the ids of a prompt, and not at those that are to end an answer.",
        "infer.output.unfit_request",
        ticket_of=lambda original, running, request: _stopping(original(running, attrs.evolve(request,
            sampling=attrs.evolve(request.sampling, stop_token_ids=()))), request)),
    row("EndedIsLength", "Says `length` of an output that ended by itself.", "infer.output.end_token",
        generate=after(lambda result: attrs.evolve(result, stop_reason=StopReason.LENGTH)
            if result.stop_reason is StopReason.STOP else result)),
    row("AppendsToTheRequest", "Grows the request's own prompt while it generates.", "infer.output.request_unchanged",
        generate=then(lambda result, request: object.__setattr__(request, "input_ids",
            (*request.input_ids, *result.output_ids)))),
    row("FailedStepForgetsWhoWaits", "Fails those that run where a step fails, and forgets those that wait.",
        "infer.faults.step", start=then(lambda self: setattr(self.running.loop, "__class__", _ForgetfulLoop))),
    row("FailedStepLeavesItsCache", "Gives the rows of a step that failed to the next requests, with what it wrote.",
        "infer.faults.step", start=then(lambda self: setattr(self.running.loop, "__class__", _UncleanLoop))),
    row("RowsMoveWithoutTheirCache",
        "Closes the gap of a finished request by moving another one there, and forgets its cached keys and values.",
        "infer.concurrent.alone", "infer.cancel.leaves_others", "infer.faults.cancel_storm",
        start=then(lambda self: setattr(self.running.loop, "__class__", _NoMoveLoop))),
    row("LastComeFirstServed", "Serves the newest waiting request first.", "infer.concurrent.no_starvation",
        start=then(lambda self: setattr(self.running.loop, "waiting", _Stack()))),
    row("RefusesWhenFull", "Fails a request that finds every slot taken, instead of letting it wait.",
        "infer.concurrent.more_than_slots",
        generate=before(lambda self: GenerationFailed("the engine is full")
            if len(self.callers) >= self.running.spec.max_concurrent else None)),
    row("MoreSlotsThanAllowed", "Runs two requests more at once than it was told to.",
        "infer.concurrent.more_than_slots", start=given(max_concurrent=lambda spec: spec.max_concurrent + 2)),
    row("SharesInPercent", "Tells shares as percentages.", "infer.status.metrics",
        status=gives(metrics=lambda result: {name: 100 * value if name in FLEET_METRICS else value for name,
            value in result.metrics.items()})),
    row("DividesByNothing", "Tells NaN for a share of nothing.", "infer.status.metrics",
        status=gives(metrics=lambda result: {**result.metrics, **({KV_USED_SHARE: float("nan")}
            if not result.num_running else {})})),
    row("CountsWhatRunsAsPreempted",
        "Tells how many requests lack their cache at the moment, where all since the start are asked for.",
        "infer.status.metrics",
        status=gives(metrics=lambda result: {**result.metrics, NUM_PREEMPTED: float(result.num_running)})),
    row("MissesAreHits", "Tells the share of prompt tokens that was not found for the share that was.",
        "infer.start.info",
        status=gives(metrics=lambda result: {**result.metrics,
            PREFIX_HIT_SHARE: 1 - result.metrics[PREFIX_HIT_SHARE]})),
    row("QueuesTakeNoTime", "Says that nobody waited for a place.", "infer.output.timings",
        generate=gives(timings=lambda result: attrs.evolve(result.timings, queued_s=0.0))),
    row("TheLastIsTheFirst", "Says of the last token when the first one came.", "infer.output.timings",
        generate=gives(timings=lambda result: attrs.evolve(result.timings, first_token_s=result.timings.total_s))),
    row("RestIsBusy", "Counts the time in which nothing is asked for as busy.", "infer.status.counts",
        status=gives(busy_s=lambda: time.monotonic())),
    row("CrossesRowsInACrowd", "Exchanges the log-probs of two requests once more than 64 run together.",
        "infer.concurrent.crowd",
        start=then(lambda self: setattr(self.running.loop.rows, "__class__", _CrossedRows))),
    row("DropsTheEndToken", "Leaves the end token out of the output.", "infer.output.end_token",
        incident="rllm#272", row="token-fidelity",
        generate=after(lambda result: without_last(result) if result.stop_reason is StopReason.STOP
            and len(result.output_ids) > 1 else result)),
    row("TimesFromTheWrongClock", "Measures the whole from the first token on, so that the parts are longer than it.",
        "infer.output.greedy",
        generate=gives(timings=lambda result: attrs.evolve(result.timings,
            total_s=max(0.0, result.timings.total_s - result.timings.first_token_s) / 1e3))),
    row("CountsPromptTokens", "Counts the tokens of prompts as generated ones.", "infer.status.counts",
        status=gives(tokens_generated=lambda result: result.tokens_generated
            + int(result.metrics["prompt_tokens_computed"] + result.metrics["prompt_tokens_shared"]))),
)  # fmt: skip
