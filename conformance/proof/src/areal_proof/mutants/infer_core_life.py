"""Inference engines that start, close or cancel badly.

Knows: how the reference generator's life can be bent.
Does not know: what it generates.
"""

from __future__ import annotations

import asyncio
import os
import threading
from multiprocessing import shared_memory
from typing import Any, ClassVar

from areal_core.contract.errors import GenerationFailed, ModelError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, PauseMode
from areal_core.contract.train import EngineInfo
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, gives, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)


@breaks("start", "infer.start.serves_the_folder")
async def LeavesBiasesAtZero(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Does not load the biases of its model."""
    info = await original()
    for name, parameter in self._require().loaded.model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return info


@breaks("generate", "infer.close.callers", row="dead-peer")
async def CloseStrandsCallers(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Closes and leaves whoever waits for an answer waiting for ever."""
    try:
        return await original()
    except GenerationFailed:
        if self._closed:
            await asyncio.Event().wait()
        raise


@breaks("close", "infer.close.callers", row="failed-is-typed")
async def CloseAnswersWithWhatThereIs(original: Original, self: ReferenceInferenceEngine) -> None:
    """Answers waiting callers with unfinished outputs when it is closed, as if they were good."""
    if self._running is not None:
        await self.pause(PauseMode.ABORT)
    await original()


@mutant("infer/reference", killers=("infer.close.callers",), row="dead-peer")
class CloseForgetsTheFrozen(ReferenceInferenceEngine):
    """Fails running callers when it is closed, and forgets those a pause had frozen."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except GenerationFailed:
            if vars(self).get("was_paused"):
                await asyncio.Event().wait()
            raise

    async def close(self) -> None:
        vars(self)["was_paused"] = self._running is not None and self._running.loop.paused
        await super().close()


@breaks("generate", "infer.many.requests_flat", row="flat-memory")
async def CancelLeavesAPipe(original: Original) -> Any:
    """Leaves a descriptor open for every cancelled request."""
    try:
        return await original()
    except asyncio.CancelledError:
        os.open(os.devnull, os.O_RDONLY)
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
        self._require()
        return [engine for engine in self.every if engine._running is not None]


ROWS = breaks.rows(
    row("TellsTheModelsContext", "Reports the context the model could have, not the one it was started with.",
        "infer.start.info",
        start=gives(context_length=lambda self: self._require().loaded.model.config.max_position_embeddings)),
    row("CountsTiedTwice", "Counts a tied head as parameters of its own.", "infer.start.info",
        start=gives(num_parameters=lambda self: sum((parameter.numel() for _,
            parameter in self._require().loaded.model.named_parameters(remove_duplicate=False))))),
    row("FolderErrorsAsTheyCome", "Lets an unfit folder fail with the error of whichever library noticed.",
        "infer.start.unfit_folder", row="visible-plugin", start=catches(ModelError, lambda error: OSError(str(error)))),
    row("FallsOverBeforeStart", "Falls over its own missing parts when it is used before `start`.",
        "infer.start.first",
        generate=before(lambda self: AttributeError("'NoneType' object has no attribute 'loop'")
            if self._running is None and not self._closed else None)),
    row("VersionOfTheClass", "Keeps its version where every engine of the process finds it.", "infer.start.again",
        newest=0, start=then(lambda self: setattr(self._require().stage, "version", type(self).newest)),
        close=before(lambda self: setattr(type(self), "newest", self._running.stage.version)
            if self._running is not None else None)),
    row("RaisesOnSecondClose", "Raises when it is closed a second time.", "infer.close.idempotent",
        close=before(lambda self: GenerationFailed("the engine is closed already") if self._closed else None)),
    row("FallsOverAfterClose", "Falls over its own missing parts when it is used after `close`.", "infer.close.after",
        generate=before(lambda self: RuntimeError("cannot schedule new futures after shutdown") if self._closed
            else None)),
    row("LeavesAThread", "Leaves a thread behind that waits for work.", "infer.close.leaves_nothing",
        start=before(lambda: threading.Thread(target=threading.Event().wait, args=(60.0,), daemon=True).start())),
    row("LeavesASegment",
        "Leaves a piece of shared memory behind; Python's resource tracker removes it when the process ends.",
        "infer.close.leaves_nothing", row="flat-memory",
        start=before(lambda self: setattr(self, "_room", shared_memory.SharedMemory(create=True, size=4096)))),
    row("LeavesADescriptor", "Leaves a file descriptor open for every weight update.", "infer.close.leaves_nothing",
        "infer.many.flat", row="flat-memory", commit_weights=then(lambda: os.open(os.devnull, os.O_RDONLY))),
    row("CancelOnlyDetaches", "Lets the caller of a cancelled request go, and computes the request to its end.",
        "infer.cancel.frees_slot", "infer.pause.cancelled", row="one-straggler",
        generate=lambda original, request: asyncio.shield(asyncio.ensure_future(original(request)))),
    row("ReceivesThoughClosed", "Goes on receiving weights when it is closed, and hands out a receipt for nobody.",
        "infer.faults.close_while_receiving",
        receive_weights=before(lambda self: setattr(self._require().stage, "_cancelled", _Deaf()))),
    row("IdleIsRunning", "Counts a request that is done as one still running.", "infer.start.info",
        "infer.status.counts", status=gives(num_running=lambda result: max(1, result.num_running))),
)  # fmt: skip
