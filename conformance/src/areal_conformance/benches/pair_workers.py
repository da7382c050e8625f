"""Workers that live in this process, with the host, the codec and the errors of real ones; engines kept for them.

Knows: how a call becomes the host's, what can be done to one on its way, and an engine at rest where a start is slow.
Does not know: engines, processes or sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import define

from areal_core.contract.errors import ArealError, RemoteError, WorkerDied, WorkerTimeout
from areal_core.contract.inference import InferenceEngine, InferenceSpec, PauseMode
from areal_core.contract.train import EngineInfo
from areal_torch.testing.serving import FolderWeights
from areal_worker.codec import decode, encode
from areal_worker.service import Host

Trouble = Exception | Callable[[Any], Any]
"""Raised in place of a call, or applied to its answer. Any: the answer of the method it is for."""


class InProcessWorker:
    """Satisfies `contract.Worker`. Arguments and answers travel through the codec, as between processes."""

    host = "127.0.0.1"

    def __init__(
        self, worker_id: str, host: Host, starting: asyncio.Lock, *, started: EngineInfo | None = None
    ) -> None:
        """Wrap a host of this process. Those that share `starting` start in turn: two threads cannot load models.

        `started` is the answer of a host that was started before, for its next `start`.
        """
        self.started = started
        self.id = worker_id
        self._starting = starting
        self.service = host
        self.calls: list[str] = []
        self.faults: dict[str, Trouble] = {}
        self.fired: list[str] = []

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a method of the hosted engine. Any: as in the contract."""
        self.calls.append(method)
        if method == "start" and self.started is not None:
            return self.started
        fault = self.faults.get(method)
        if isinstance(fault, Exception):
            self.fired.append(method)
            if isinstance(fault, WorkerDied):
                self.faults = dict.fromkeys(("generate", "status", "abort_weights", method), fault)
            raise fault
        try:
            async with asyncio.timeout(timeout_s), self._starting if method == "start" else contextlib.nullcontext():
                answer = await self.service.call(method, tuple(_copied(args)))
        except TimeoutError as error:
            raise WorkerTimeout(f"{self.id} did not answer {method!r} within {timeout_s:g} s") from error
        except ArealError:
            raise
        except Exception as error:
            raise RemoteError(f"{method!r} raised in {self.id}", why=f"{type(error).__name__}: {error}") from error
        answer = _copied([answer])[0]
        if method == "start" and isinstance(answer, EngineInfo):
            self.started = answer
        if fault is not None:
            self.fired.append(method)
            return fault(answer)
        return answer


def _copied(values: Any) -> Any:
    """Send values through the codec."""
    return decode([bytes(frame) for frame in encode(list(values))])


KEPT = 2
REST_S = 30.0
POLL_S = 0.01


@define(kw_only=True)
class Kept:
    """A started engine, what it was started with and what it answered."""

    engine: InferenceEngine
    spec: InferenceSpec
    info: EngineInfo


class KeptEngines:
    """At most two engines between checks, each at rest with the weights of its specification's folder."""

    def __init__(self, pause: PauseMode | None) -> None:
        """Keep none. `pause` is what the engine needs for a commit."""
        self._kept: list[Kept] = []
        self._pause = pause
        self._weights: dict[str, FolderWeights] = {}

    async def take(self, spec: InferenceSpec, count: int) -> tuple[int, list[Kept]]:
        """Return `count` engines of this specification and the one version they serve; none if fewer are kept."""
        found = [kept for kept in self._kept if kept.spec == spec][:count]
        if len(found) < count:
            return 0, []
        for kept in found:
            self._kept.remove(kept)
        versions = [(await kept.engine.status()).version for kept in found]
        if len(set(versions)) == 1:
            return versions[0], found
        for kept in found:
            await self._restore(kept, max(versions) + 1)
        return max(versions) + 1, found

    async def keep(self, kept: Kept) -> None:
        """Bring an engine to rest and keep it; one that does not come to rest is closed."""
        try:
            async with asyncio.timeout(REST_S):
                await kept.engine.resume()
                await kept.engine.abort_weights()
                await self._restore(kept, (await kept.engine.status()).version + 1)
                await _at_rest(kept.engine)
        except Exception:
            await kept.engine.close()
            return
        self._kept.append(kept)
        while len(self._kept) > KEPT:
            await self._kept.pop(0).engine.close()

    async def close(self) -> None:
        """Close every engine kept."""
        while self._kept:
            with contextlib.suppress(Exception):  # checks of close have judged what close does
                await self._kept.pop().engine.close()

    async def _restore(self, kept: Kept, version: int) -> None:
        if self._pause is not None:
            await kept.engine.pause(self._pause)
        await kept.engine.receive_weights(self._folder(kept.spec).offer(version), version)
        await kept.engine.commit_weights(version)
        await kept.engine.resume()

    def _folder(self, spec: InferenceSpec) -> FolderWeights:
        if spec.model_path not in self._weights:
            self._weights[spec.model_path] = FolderWeights.of(Path(spec.model_path), getattr(torch, spec.dtype))
        return self._weights[spec.model_path]


async def _at_rest(engine: InferenceEngine) -> None:
    status = await engine.status()
    while status.num_running or status.num_waiting:
        await asyncio.sleep(POLL_S)
        status = await engine.status()
