"""Inference engines that start, close or cancel badly.

Knows: how the reference generator's life can be bent.
Does not know: what it generates.
"""

from __future__ import annotations

import asyncio
import os
import threading
from multiprocessing import shared_memory
from typing import ClassVar

import attrs

from areal_core.contract.errors import GenerationFailed, ModelError
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, InferenceSpec, PauseMode
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine


@mutant("infer/reference", killers=("infer.start.info",))
class TellsTheModelsContext(ReferenceInferenceEngine):
    """Reports the context the model could have, not the one it was started with."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        loaded = self._require().loaded
        return attrs.evolve(info, context_length=loaded.model.config.max_position_embeddings)


@mutant("infer/reference", killers=("infer.start.info",))
class CountsTiedTwice(ReferenceInferenceEngine):
    """Counts a tied head as parameters of its own."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        model = self._require().loaded.model
        every = sum(parameter.numel() for _, parameter in model.named_parameters(remove_duplicate=False))
        return attrs.evolve(info, num_parameters=every)


@mutant("infer/reference", killers=("infer.start.serves_the_folder",))
class LeavesBiasesAtZero(ReferenceInferenceEngine):
    """Does not load the biases of its model."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        for name, parameter in self._require().loaded.model.named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()
        return info


@mutant("infer/reference", killers=("infer.start.unfit_folder",), row="visible-plugin")
class FolderErrorsAsTheyCome(ReferenceInferenceEngine):
    """Lets an unfit folder fail with the error of whichever library noticed."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        try:
            return await super().start(spec)
        except ModelError as error:
            raise OSError(str(error)) from error


@mutant("infer/reference", killers=("infer.start.first",))
class FallsOverBeforeStart(ReferenceInferenceEngine):
    """Falls over its own missing parts when it is used before `start`."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._running is None and not self._closed:
            raise AttributeError("'NoneType' object has no attribute 'loop'")
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.start.again",))
class VersionOfTheClass(ReferenceInferenceEngine):
    """Keeps its version where every engine of the process finds it."""

    newest: ClassVar[int] = 0

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().stage.version = type(self).newest
        return info

    async def close(self) -> None:
        if self._running is not None:
            type(self).newest = self._running.stage.version
        await super().close()


@mutant("infer/reference", killers=("infer.close.idempotent",))
class RaisesOnSecondClose(ReferenceInferenceEngine):
    """Raises when it is closed a second time."""

    async def close(self) -> None:
        if self._closed:
            raise GenerationFailed("the engine is closed already")
        await super().close()


@mutant("infer/reference", killers=("infer.close.callers",), row="dead-peer")
class CloseStrandsCallers(ReferenceInferenceEngine):
    """Closes and leaves whoever waits for an answer waiting for ever."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except GenerationFailed:
            if self._closed:
                await asyncio.Event().wait()
            raise


@mutant("infer/reference", killers=("infer.close.callers",), row="failed-is-typed")
class CloseAnswersWithWhatThereIs(ReferenceInferenceEngine):
    """Answers waiting callers with unfinished outputs when it is closed, as if they were good."""

    async def close(self) -> None:
        if self._running is not None:
            await self.pause(PauseMode.ABORT)
        await super().close()


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


@mutant("infer/reference", killers=("infer.close.after",))
class FallsOverAfterClose(ReferenceInferenceEngine):
    """Falls over its own missing parts when it is used after `close`."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.close.leaves_nothing",))
class LeavesAThread(ReferenceInferenceEngine):
    """Leaves a thread behind that waits for work."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        threading.Thread(target=threading.Event().wait, args=(60.0,), daemon=True).start()
        return await super().start(spec)


@mutant("infer/reference", killers=("infer.close.leaves_nothing",), row="flat-memory")
class LeavesASegment(ReferenceInferenceEngine):
    """Leaves a piece of shared memory behind; Python's resource tracker removes it when the process ends."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        self._room = shared_memory.SharedMemory(create=True, size=4096)
        return await super().start(spec)


@mutant("infer/reference", killers=("infer.close.leaves_nothing", "infer.many.flat"), row="flat-memory")
class LeavesADescriptor(ReferenceInferenceEngine):
    """Leaves a file descriptor open for every weight update."""

    async def commit_weights(self, version: int) -> None:
        await super().commit_weights(version)
        os.open(os.devnull, os.O_RDONLY)


@mutant("infer/reference", killers=("infer.cancel.frees_slot", "infer.pause.cancelled"), row="one-straggler")
class CancelOnlyDetaches(ReferenceInferenceEngine):
    """Lets the caller of a cancelled request go, and computes the request to its end."""

    async def generate(self, request: GenerationRequest) -> Generation:
        return await asyncio.shield(asyncio.ensure_future(super().generate(request)))


@mutant("infer/reference", killers=("infer.many.requests_flat",), row="flat-memory")
class CancelLeavesAPipe(ReferenceInferenceEngine):
    """Leaves a descriptor open for every cancelled request."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except asyncio.CancelledError:
            os.open(os.devnull, os.O_RDONLY)
            raise


class _Deaf(threading.Event):
    def set(self) -> None:
        return


@mutant("infer/reference", killers=("infer.faults.close_while_receiving",))
class ReceivesThoughClosed(ReferenceInferenceEngine):
    """Goes on receiving weights when it is closed, and hands out a receipt for nobody."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        self._require().stage._cancelled = _Deaf()
        return await super().receive_weights(source, version)


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


@mutant("infer/reference", killers=("infer.start.info", "infer.status.counts"))
class IdleIsRunning(ReferenceInferenceEngine):
    """Counts a request that is done as one still running."""

    async def status(self) -> EngineStatus:
        status = await super().status()
        return attrs.evolve(status, num_running=max(1, status.num_running))
