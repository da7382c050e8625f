"""Inference engines that answer wrongly: tokens, log-probs, lengths, ends, other people's outputs.

Knows: how the reference generator's answers can be bent.
Does not know: updates and pauses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, GenerationFailed, PromptTooLong
from areal_core.contract.inference import (
    FLEET_METRICS,
    KV_USED_SHARE,
    NUM_PREEMPTED,
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    Timings,
    VersionSpan,
)
from areal_core.contract.train import EngineInfo
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine, _Running
from areal_reference.infer.loop import GenerationLoop
from areal_reference.infer.rows import RowTable, Ticket
from areal_reference.infer.sampling import sample


@mutant("infer/reference", killers=("infer.output.logprobs", "infer.output.temperature"))
class LogprobsOfTheTokenBefore(ReferenceInferenceEngine):
    """Reports each token with the log-prob of the one before it."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return attrs.evolve(result, logprobs=(*result.logprobs[:1], *result.logprobs[:-1]))


class _RawLoop(GenerationLoop):
    __slots__ = ()

    def _draw(self, work):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            logits = self.runner.logits(work)
            tokens, _ = sample(logits, self.rows.sampling(np.arange(self.rows.count)))
            raw = torch.log_softmax(logits.float(), -1).gather(1, tokens.unsqueeze(1))[:, 0]
        return tokens.cpu().numpy(), raw.cpu().numpy()


@mutant("infer/reference", killers=("infer.output.temperature",), row="logprob-gap")
class RawLogprobs(ReferenceInferenceEngine):
    """Reports the log-probs of temperature 1, whatever the temperature drawn at."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().loop.__class__ = _RawLoop
        return info


@mutant("infer/reference", killers=("infer.output.temperature",))
class OneTemperatureForAll(ReferenceInferenceEngine):
    """Draws every request at the temperature of the one that was there first."""

    def _ticket(self, running: _Running, request: GenerationRequest) -> Ticket:
        ticket = super()._ticket(running, request)
        others = [other.request.sampling.temperature for other in self._callers]
        if others and others[0] and request.sampling.temperature:
            sampling = attrs.evolve(request.sampling, temperature=others[0])
            ticket.request = attrs.evolve(request, sampling=sampling)
        return ticket


@mutant("infer/reference", killers=("infer.output.greedy",))
class GreedyIsNearlyGreedy(ReferenceInferenceEngine):
    """Takes temperature 0 for a low temperature."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if request.sampling.temperature == 0.0:
            request = attrs.evolve(request, sampling=attrs.evolve(request.sampling, temperature=0.5))
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.output.greedy", "infer.output.budget"))
class EchoesThePrompt(ReferenceInferenceEngine):
    """Returns the prompt before the output."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result, ids = await super().generate(request), request.input_ids
        spans = tuple(attrs.evolve(s, start=s.start + len(ids), stop=s.stop + len(ids)) for s in result.version_spans)
        first = VersionSpan(start=0, stop=len(ids), version=spans[0].version) if spans else None
        return attrs.evolve(
            result,
            output_ids=(*ids, *result.output_ids),
            logprobs=(*[0.0] * len(ids), *result.logprobs),
            version_spans=(first, *spans) if first else (),
        )


@mutant("infer/reference", killers=("infer.output.continued",), row="token-fidelity", incident="miles#353")
class ReturnsThePriorAgain(ReferenceInferenceEngine):
    """Counts the prior tokens of a continued request against its budget."""

    async def generate(self, request: GenerationRequest) -> Generation:
        left = max(1, request.sampling.max_new_tokens - request.num_prior)
        sampling = attrs.evolve(request.sampling, max_new_tokens=left)
        return await super().generate(attrs.evolve(request, sampling=sampling) if request.num_prior else request)


@mutant("infer/reference", killers=("infer.output.budget",))
class OneTokenTooMany(ReferenceInferenceEngine):
    """Stops one token after the budget."""

    async def generate(self, request: GenerationRequest) -> Generation:
        sampling = attrs.evolve(request.sampling, max_new_tokens=request.sampling.max_new_tokens + 1)
        return await super().generate(attrs.evolve(request, sampling=sampling))


@mutant("infer/reference", killers=("infer.output.context_end",))
class ContextEndsOneEarly(ReferenceInferenceEngine):
    """Leaves the last position of the context unused."""

    def _ticket(self, running: _Running, request: GenerationRequest) -> Ticket:
        ticket = super()._ticket(running, request)
        room = running.loaded.context_length - len(request.input_ids) - 1
        ticket.limit = max(1, min(ticket.limit, room))
        return ticket


@mutant("infer/reference", killers=("infer.output.prompt_too_long",))
class CutsLongPrompts(ReferenceInferenceEngine):
    """Cuts a prompt that is too long down to what fits, and says nothing."""

    async def generate(self, request: GenerationRequest) -> Generation:
        room = self._require().loaded.context_length - 1
        return await super().generate(attrs.evolve(request, input_ids=request.input_ids[-room:]))


@mutant("infer/reference", killers=("infer.output.prompt_too_long",), row="failed-is-typed")
class TooLongIsAFailure(ReferenceInferenceEngine):
    """Reports a prompt that is too long as a failure worth trying elsewhere."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except PromptTooLong as error:
            raise GenerationFailed(str(error)) from error


@mutant("infer/reference", killers=("infer.output.unfit_request",), row="failed-is-typed")
class UnfitIsAnIndexError(ReferenceInferenceEngine):
    """Lets an unfit request fail with whatever the array library raises."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except BatchError as error:
            raise IndexError(f"index out of range: {request.input_ids}") from error


@mutant("infer/reference", killers=("infer.output.end_token",), row="token-fidelity", incident="rllm#272")
class DropsTheEndToken(ReferenceInferenceEngine):
    """Leaves the end token out of the output."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        count = len(result.output_ids) - 1
        if result.stop_reason is not StopReason.STOP or not count:
            return result
        spans = [attrs.evolve(span, stop=min(span.stop, count)) for span in result.version_spans]
        return attrs.evolve(
            result,
            output_ids=result.output_ids[:count],
            logprobs=result.logprobs[:count],
            version_spans=tuple(span for span in spans if span.stop > span.start),
        )


@mutant("infer/reference", killers=("infer.output.end_token",))
class EndedIsLength(ReferenceInferenceEngine):
    """Says `length` of an output that ended by itself."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        ended = result.stop_reason is StopReason.STOP
        return attrs.evolve(result, stop_reason=StopReason.LENGTH) if ended else result


@mutant("infer/reference", killers=("infer.output.request_unchanged",))
class AppendsToTheRequest(ReferenceInferenceEngine):
    """Grows the request's own prompt while it generates."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        object.__setattr__(request, "input_ids", (*request.input_ids, *result.output_ids))
        return result


@mutant("infer/reference", killers=("infer.output.greedy",))
class TimesFromTheWrongClock(ReferenceInferenceEngine):
    """Measures the whole from the first token on, so that the parts are longer than it."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        times = result.timings
        return attrs.evolve(
            result,
            timings=Timings(
                queued_s=times.queued_s,
                first_token_s=times.first_token_s,
                total_s=max(0.0, times.total_s - times.first_token_s) / 1e3,
            ),
        )


@mutant("infer/reference", killers=("infer.concurrent.same_name",))
class KeyedByName(ReferenceInferenceEngine):
    """Gives two requests of one id in flight one answer."""

    async def generate(self, request: GenerationRequest) -> Generation:
        running = vars(self).setdefault("by_name", {})
        if request.request_id in running:
            result: Generation = await asyncio.shield(running[request.request_id])
            return result
        running[request.request_id] = task = asyncio.ensure_future(super().generate(request))
        try:
            return await task
        finally:
            running.pop(request.request_id, None)


@mutant("infer/reference", killers=("infer.concurrent.shared_prompts",), row="token-fidelity")
class PrefixMistakenForThePrompt(ReferenceInferenceEngine):
    """Takes a prompt for the one running whose first twenty tokens it shares."""

    def _ticket(self, running: _Running, request: GenerationRequest) -> Ticket:
        ticket = super()._ticket(running, request)
        for other in self._callers:
            ids = other.request.input_ids
            if len(ids) >= 20 and ids[:20] == request.input_ids[:20] and len(ids) <= len(request.input_ids):
                ticket.request = attrs.evolve(request, input_ids=ids)
        return ticket


class _NoMoveLoop(GenerationLoop):
    __slots__ = ()

    def _retire(self, gone: Sequence[int]) -> None:
        for row in gone:
            ticket = self.rows.tickets[row]
            if ticket and self._owners.get(ticket.prefix) is ticket:
                del self._owners[ticket.prefix]
        self.rows.remove(gone)


@mutant(
    "infer/reference",
    killers=("infer.concurrent.alone", "infer.cancel.leaves_others", "infer.faults.cancel_storm"),
)
class RowsMoveWithoutTheirCache(ReferenceInferenceEngine):
    """Closes the gap of a finished request by moving another one there, and forgets its cached keys and values."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().loop.__class__ = _NoMoveLoop
        return info


class _Stack(deque[Ticket]):
    def append(self, ticket: Ticket) -> None:
        self.appendleft(ticket)


@mutant("infer/reference", killers=("infer.concurrent.no_starvation",))
class LastComeFirstServed(ReferenceInferenceEngine):
    """Serves the newest waiting request first."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().loop.waiting = _Stack()
        return info


@mutant("infer/reference", killers=("infer.concurrent.more_than_slots",))
class RefusesWhenFull(ReferenceInferenceEngine):
    """Fails a request that finds every slot taken, instead of letting it wait."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if len(self._callers) >= self._require().spec.max_concurrent:
            raise GenerationFailed("the engine is full")
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.concurrent.more_than_slots",))
class MoreSlotsThanAllowed(ReferenceInferenceEngine):
    """Runs two requests more at once than it was told to."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        return await super().start(attrs.evolve(spec, max_concurrent=spec.max_concurrent + 2))


@mutant("infer/reference", killers=("infer.status.counts",))
class CountsPromptTokens(ReferenceInferenceEngine):
    """Counts the tokens of prompts as generated ones."""

    async def status(self) -> EngineStatus:
        status = await super().status()
        prompts = int(status.metrics["prompt_tokens_computed"] + status.metrics["prompt_tokens_shared"])
        return attrs.evolve(status, tokens_generated=status.tokens_generated + prompts)


@mutant("infer/reference", killers=("infer.status.metrics",))
class SharesInPercent(ReferenceInferenceEngine):
    """Tells shares as percentages."""

    async def status(self) -> EngineStatus:
        status = await super().status()
        told = {name: 100 * value if name in FLEET_METRICS else value for name, value in status.metrics.items()}
        return attrs.evolve(status, metrics=told)


@mutant("infer/reference", killers=("infer.status.metrics",))
class DividesByNothing(ReferenceInferenceEngine):
    """Tells NaN for a share of nothing."""

    async def status(self) -> EngineStatus:
        status = await super().status()
        idle = {KV_USED_SHARE: float("nan")} if not status.num_running else {}
        return attrs.evolve(status, metrics={**status.metrics, **idle})


@mutant("infer/reference", killers=("infer.status.metrics",))
class CountsWhatRunsAsPreempted(ReferenceInferenceEngine):
    """Tells how many requests lack their cache at the moment, where all since the start are asked for."""

    async def status(self) -> EngineStatus:
        status = await super().status()
        return attrs.evolve(status, metrics={**status.metrics, NUM_PREEMPTED: float(status.num_running)})


class _CrossedRows(RowTable):
    __slots__ = ()

    def record(self, tokens, logprobs, version, now_s):  # type: ignore[no-untyped-def]
        if self.count > 64:
            logprobs = logprobs.copy()
            logprobs[[0, 64]] = logprobs[[64, 0]]
        return super().record(tokens, logprobs, version, now_s)


@mutant("infer/reference", killers=("infer.concurrent.crowd",))
class CrossesRowsInACrowd(ReferenceInferenceEngine):
    """Exchanges the log-probs of two requests once more than 64 run together."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().loop.rows.__class__ = _CrossedRows
        return info
