"""Inference engines that start, close, cancel, pause, resume or abort badly.

Knows: how the reference generator's life and control can be bent.
Does not know: what it generates.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, ClassVar

import attrs

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, ModelError
from areal_core.contract.inference import Generation, InferenceSpec, PauseMode, VersionSpan
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import WeightSource
from areal_core.plugins.claims import unsupported
from areal_proof.leavings import leave
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, given, gives, on, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)


@breaks("start", "infer.start.serves_the_folder")
async def LeavesBiasesAtZero(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Does not load the biases of its model."""
    info = await original()
    for name, parameter in self.running.loaded.model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return info


@breaks("pause", "infer.close.crossing", row="dead-peer")
async def CloseStrandsWhoPauses(original: Original, self: ReferenceInferenceEngine) -> None:
    """Lets a pause that crosses a close wait for ever."""
    try:
        await original()
    finally:
        if self.closed:
            await asyncio.Event().wait()


@breaks("generate", "infer.close.callers", row="dead-peer")
async def CloseStrandsCallers(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Closes and leaves whoever waits for an answer waiting for ever."""
    try:
        return await original()
    except GenerationFailed:
        if self.closed:
            await asyncio.Event().wait()
        raise


@breaks("close", "infer.close.callers", row="failed-is-typed")
async def CloseAnswersWithWhatThereIs(original: Original, self: ReferenceInferenceEngine) -> None:
    """Answers waiting callers with unfinished outputs when it is closed, as if they were good."""
    if self.is_running:
        await self.pause(PauseMode.ABORT)
    await original()


@breaks("generate", "infer.close.callers", row="dead-peer", was_paused=False,
    close=before(lambda self: setattr(self, "was_paused", self.is_running and self.running.loop.paused)))  # fmt: skip
async def CloseForgetsTheFrozen(original: Original, self: Any) -> Any:
    """Fails running callers when it is closed, and forgets those a pause had frozen."""
    try:
        return await original()
    except GenerationFailed:
        if self.was_paused:
            await asyncio.Event().wait()
        raise


class _Deaf(threading.Event):
    def set(self) -> None:
        return


@mutant("infer/reference", killers=("infer.pause.tenants",), row="tenants", incident="SkyRL#1647")
class PausesEveryEngine(ReferenceInferenceEngine):
    """Pauses and resumes every engine of the process with the one that was asked."""

    every: ClassVar[list[ReferenceInferenceEngine]] = []

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self.every.append(self)
        return info

    async def pause(self, mode: PauseMode) -> None:
        for engine in self._alive():
            await ReferenceInferenceEngine.pause(engine, mode)

    async def resume(self) -> None:
        for engine in self._alive():
            await ReferenceInferenceEngine.resume(engine)

    async def close(self) -> None:
        if self in self.every:
            self.every.remove(self)
        await super().close()

    def _alive(self) -> list[ReferenceInferenceEngine]:
        _ = self.running
        return [engine for engine in self.every if engine.is_running]


ROWS = breaks.rows(
    row("TellsTheModelsContext", "Reports the context the model could have, not the one it was started with.",
        "infer.start.info",
        start=gives(context_length=lambda self: self.running.loaded.model.config.max_position_embeddings)),
    row("TakesTheContextItHas", "Takes a context that is longer than the model's for the model's.",
        "infer.start.context", start=given(context_length=lambda spec: min(spec.context_length, 8192))),
    row("CountsTiedTwice", "Counts a tied head as parameters of its own.", "infer.start.info",
        start=gives(num_parameters=lambda self: sum((parameter.numel() for _,
            parameter in self.running.loaded.model.named_parameters(remove_duplicate=False))))),
    row("FolderErrorsAsTheyCome", "Lets an unfit folder fail with the error of whichever library noticed.",
        "infer.start.unfit_folder", row="visible-plugin", start=catches(ModelError, lambda error: OSError(str(error)))),
    row("FallsOverBeforeStart", "Falls over its own missing parts when it is used before `start`.",
        "infer.start.first",
        generate=before(lambda self: AttributeError("'NoneType' object has no attribute 'loop'")
            if not self.is_running and not self.closed else None)),
    row("VersionOfTheClass", "Keeps its version where every engine of the process finds it.", "infer.start.again",
        newest=0, start=then(lambda self: setattr(self.running.stage, "version", type(self).newest)),
        close=before(lambda self: setattr(type(self), "newest", self.running.stage.version)
            if self.is_running else None)),
    row("RaisesOnSecondClose", "Raises when it is closed a second time.", "infer.close.idempotent",
        close=before(lambda self: GenerationFailed("the engine is closed already") if self.closed else None)),
    row("FallsOverAfterClose", "Falls over its own missing parts when it is used after `close`.", "infer.close.after",
        generate=before(lambda self: RuntimeError("cannot schedule new futures after shutdown") if self.closed
            else None)),
    row("LeavesAThread", "Leaves a thread behind that waits for work.", "infer.close.leaves_nothing",
        start=before(lambda: threading.Thread(target=threading.Event().wait, args=(60.0,), daemon=True).start())),
    row("LeavesASegment",
        "Leaves a piece of shared memory behind; Python's resource tracker removes it when the process ends.",
        "infer.close.leaves_nothing", row="flat-memory",
        start=before(lambda self: setattr(self, "_room", leave()))),
    row("LeavesADescriptor", "Leaves a file descriptor open for every weight update.", "infer.close.leaves_nothing",
        "infer.many.flat", row="flat-memory", commit_weights=then(lambda: os.open(os.devnull, os.O_RDONLY))),
    row("CancelOnlyDetaches", "Lets the caller of a cancelled request go, and computes the request to its end.",
        "infer.cancel.frees_slot", "infer.pause.cancelled", row="one-straggler",
        generate=lambda original, request: asyncio.shield(asyncio.ensure_future(original(request)))),
    row("ReceivesThoughClosed", "Goes on receiving weights when it is closed, and hands out a receipt for nobody.",
        "infer.faults.close_while_receiving",
        receive_weights=before(lambda self: setattr(self.running.stage, "cancelled", _Deaf()))),
    row("CloseCancelsAborts", "Cancels, at `close`, whoever waits for a version to be aborted.",
        "infer.faults.close_while_receiving",
        abort_weights=catches(GenerationFailed, lambda error: asyncio.CancelledError())),
    row("IdleIsRunning", "Counts a request that is done as one still running.", "infer.start.info",
        "infer.status.counts", status=gives(num_running=lambda result: max(1, result.num_running))),
    row("CancelLeavesAPipe", "Leaves a descriptor open for every cancelled request.", "infer.many.requests_flat",
        row="flat-memory", generate=on(asyncio.CancelledError, lambda: os.open(os.devnull, os.O_RDONLY))),
)  # fmt: skip


@breaks("pause", "infer.pause.freezes", "infer.pause.holds_new", row="sleep-is-real", incident="vLLM#45585",
    says_paused=False, resume=before(lambda self: setattr(self, "says_paused", False)),
    status=gives(paused=lambda self: self.says_paused))  # fmt: skip
async def PauseIgnored(original: Original, self: Any, mode: PauseMode) -> None:
    """Says it is paused, and computes on."""
    _ = self.running
    self.says_paused = True
    if mode is PauseMode.ABORT:
        await original()
        await ReferenceInferenceEngine.resume(self)


@breaks("pause", "infer.pause.freezes", row="sleep-is-real")
async def PauseReturnsEarly(self: Any, mode: PauseMode) -> None:
    """Returns from `pause` while tokens are still being computed."""
    loop = self.running.loop
    goal = loop.counters.tokens + 10

    async def later() -> None:
        while loop.rows.count and loop.counters.tokens < goal:  # noqa: ASYNC110 - the loop is another thread
            await asyncio.sleep(0)
        loop.post(lambda: loop.pause(abort=mode is PauseMode.ABORT))

    vars(self)["later"] = asyncio.ensure_future(later())
    await asyncio.sleep(0)


@breaks("generate", "infer.pause.freezes", "infer.pause.keep_is_invisible", pauses=0,
    pause=then(lambda self: setattr(self, "pauses", self.pauses + 1)))  # fmt: skip
async def PauseCostsAToken(original: Original, self: Any) -> Any:
    """Loses the last token of a request that lived through a pause."""
    before = self.pauses
    result = await original()
    survives = before == self.pauses or result.stop_reason is StopReason.ABORTED or len(result.output_ids) < 2
    return result if survives else without_last(result)


def without_last(result: Generation) -> Generation:
    """Return an output that has lost its last token."""
    count = len(result.output_ids) - 1
    spans = [attrs.evolve(span, stop=min(span.stop, count)) for span in result.version_spans]
    return attrs.evolve(
        result,
        output_ids=result.output_ids[:count],
        logprobs=result.logprobs[:count],
        version_spans=tuple(span for span in spans if span.stop > span.start),
    )


@breaks("pause", "infer.pause.abort_returns")
async def AbortForgetsTheQueue(self: ReferenceInferenceEngine, mode: PauseMode) -> None:
    """Returns what runs, and leaves what is queued waiting."""
    loop = self.running.loop

    def message() -> None:
        waiting = list(loop.waiting)
        loop.waiting.clear()
        loop.pause(abort=mode is PauseMode.ABORT)
        loop.waiting.extend(waiting)

    await self.between_steps(message)


@breaks("generate", "infer.pause.abort_continues", "infer.pause.abort_returns", "infer.pause.ends_first_token",
        row="token-fidelity")  # fmt: skip
async def AbortedRepeatsAToken(original: Original) -> Any:
    """Returns the last token but one of an aborted request once more, at its end."""
    result = await original()
    if result.stop_reason is not StopReason.ABORTED or len(result.output_ids) < 2:
        return result
    last = result.version_spans[-1]
    return attrs.evolve(
        result,
        output_ids=(*result.output_ids, result.output_ids[-2]),
        logprobs=(*result.logprobs, result.logprobs[-2]),
        version_spans=(*result.version_spans[:-1], attrs.evolve(last, stop=last.stop + 1)),
    )


@breaks("generate", "infer.pause.cancelled")
async def CancelDeafWhilePaused(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Misses a cancellation that comes during a pause, and computes on when resumed."""
    inner = asyncio.ensure_future(original())
    try:
        return await asyncio.shield(inner)
    except asyncio.CancelledError:
        if not self.is_running or not self.running.loop.paused:
            inner.cancel()
        raise


CORE_CONTROL_ROWS = breaks.rows(
    row("KeepIsAbort", "Returns requests early where it was to freeze them.", "infer.pause.keep_is_invisible",
        "infer.pause.freezes", pause=lambda original: original(PauseMode.ABORT)),
    row("AbortedIsLength", "Says of an output that a pause cut short that it reached its length.",
        "infer.pause.abort_returns", row="trained-as-submitted",
        generate=after(lambda result: attrs.evolve(result, stop_reason=StopReason.LENGTH)
            if result.stop_reason is StopReason.ABORTED and result.output_ids else result)),
    row("RefusesWhilePaused", "Fails requests that come during a pause.", "infer.pause.holds_new",
        generate=before(lambda self: GenerationFailed("the engine is paused") if self.running.loop.paused
            else None)),
    row("AnswersEmptyWhilePaused", "Answers requests that come during a pause at once, with nothing.",
        "infer.pause.holds_new",
        generate=lambda original, self, request: Generation(output_ids=(), logprobs=(), version_spans=(),
            stop_reason=StopReason.ABORTED) if self.running.loop.paused else original(request)),
    row("SecondPauseIsIgnored", "Ignores a pause, of whatever mode, while it is paused.", "infer.pause.mixed",
        pause=lambda original, self, mode: original(mode) if not self.running.loop.paused else None),
    row("KeepUnclaimedIsIgnored", "Does nothing when it is asked to freeze requests, which it does not claim.",
        "infer.pause.refuse_keep", claims={"pause.keep": unsupported("requests cannot be frozen")},
        pause=lambda original, mode: original(mode) if mode is PauseMode.ABORT else None),
    row("AbortUnclaimedIsIgnored", "Freezes requests when it is asked to return them, which it does not claim.",
        "infer.pause.refuse_abort", claims={"pause.abort": unsupported("requests cannot be returned early")},
        pause=lambda original: original(PauseMode.KEEP)),
    row("AbortedIsEmpty", "Throws the tokens of an aborted request away.", "infer.pause.abort_returns",
        row="trained-as-submitted",
        generate=after(lambda result: attrs.evolve(result, output_ids=(), logprobs=(), version_spans=())
            if result.stop_reason is StopReason.ABORTED else result)),
    row("AbortedHasAnEmptySpan", "Gives a request that was aborted before its first token a span of no token.",
        "infer.pause.abort_returns", row="version-spans",
        generate=after(lambda result: result if result.output_ids
            else attrs.evolve(result, version_spans=(VersionSpan(start=0, stop=0, version=0),)))),
    row("PauseIsASwitch", "Resumes when it is told to pause a second time.", "infer.pause.idempotent",
        pause=lambda original, self, mode: self.resume() if self.running.loop.paused else original(mode)),
)  # fmt: skip


@breaks("receive_weights", "infer.weights.cast_refused",
        claims={"weights.cast": unsupported("weights must come in the dtype that serves")})  # fmt: skip
async def CastUnclaimedIsSkipped(original: Original, self: ReferenceInferenceEngine, source: WeightSource) -> Any:
    """Skips tensors of another dtype, which it does not claim to cast, and says it received them."""
    running = self.running
    receipt = await original()
    kinds = {spec.dtype for spec in source.manifest.tensors}
    if kinds != {running.spec.dtype}:
        for name, parameter in running.loaded.model.named_parameters():
            running.stage.spare[name].copy_(parameter.data)
    return receipt
