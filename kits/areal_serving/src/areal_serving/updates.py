"""New weights, from their source to the next token: staged, proved, held, loaded.

Knows: which versions are held, and in which order a server is told.
Does not know: the form of staged weights (`staging`), or how an engine loads them (`dialect`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from attrs import Factory, define

from areal_core.contract.errors import FingerprintMismatch, GenerationFailed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.calls import State
from areal_serving.dialect import Dialect
from areal_serving.http import Api
from areal_serving.options import CacheOnUpdate
from areal_serving.profiling import ServedTraces
from areal_serving.server_lifecycle import ServerLifecycle
from areal_serving.slots import Slots
from areal_serving.staging import StagedWeights, Staging

T = TypeVar("T")

MAX_LOADS = 2
"""Servers that may fail to load one version before the update is given up."""


@define(eq=False)
class _Arrival:
    """One receive under way. Whoever gives it up sets both."""

    version: int
    stop: threading.Event = Factory(threading.Event)
    given_up: asyncio.Event = Factory(asyncio.Event)


class Loader(Protocol):
    """How a server is told of staged weights; a `Dialect` is one."""

    async def prove(self, api: Api, folder: Path) -> Mapping[str, str]:
        """Have every engine worker read what is staged and return name -> fingerprint."""

    async def load(self, api: Api, folder: Path, version: int, *, keep_cache: bool) -> None:
        """While paused: load it, and stamp `version` from the next token on."""


class Updates:
    """The weights of one engine. `commit`, `change` and `resume` are called one at a time."""

    def __init__(
        self,
        dialect: Dialect,
        loader: Loader,
        server: ServerLifecycle,
        state: State,
        slots: Slots,
        *,
        staging: Staging,
        traces: ServedTraces,
        kv: CacheOnUpdate,
    ) -> None:
        self._dialect = dialect
        self._loader = loader
        self._server = server
        self._state = state
        self._slots = slots
        self._staging = staging
        self._traces = traces
        self._keep_cache = kv is CacheOnUpdate.KEEP
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="areal-staging")
        self._arrivals: set[_Arrival] = set()
        self._served: StagedWeights | None = None
        self._held: StagedWeights | None = None

    async def begin(self, staged: StagedWeights) -> None:
        """Have a server that was just started serve `staged`, version 0.

        Raises:
            CapabilityError, GenerationFailed: it cannot.
        """
        self._served = staged
        await self._server.asked(lambda api: self._load(api, staged))

    async def receive(self, source: WeightSource, version: int) -> Receipt:
        """Stage and prove one version, then hold it in place of any other that is held.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what serves and what is held are untouched.
            GenerationFailed: the engine was closed, or its server given up.
        """
        arrival = _Arrival(version)
        self._arrivals.add(arrival)
        try:
            staged = await self._staged(arrival, source)
            try:
                proved = await self._unless_given_up(
                    arrival, self._server.asked(lambda api: self._loader.prove(api, staged.folder))
                )
                _compare(staged.receipt.fingerprints, proved)
            except BaseException:
                staged.close()
                raise
        finally:
            self._arrivals.discard(arrival)
        self._hold(staged)
        return staged.receipt

    async def commit(self, version: int) -> None:
        """Have the server load what is held, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held; or servers fail to load it. The one before serves.
            GenerationFailed: the engine was closed, or its server given up.
        """
        held = self._held
        if held is None or held.version != version:
            if version == self._state.version:
                return
            raise WeightSyncError(
                f"version {version} cannot be committed",
                why="nothing is held" if held is None else f"version {held.version} is held",
                fix="call receive_weights for it first",
            )
        self._held = None  # whatever arrives or is aborted meanwhile leaves alone what is being loaded
        try:
            await self.change(version, lambda api, _: self._load(api, held), held)
        except BaseException:
            if self._held is None and self._served is not held:
                self._held = held
            raise

    async def change(
        self, version: int, load: Callable[[Api, bool], Awaitable[None]], staged: StagedWeights | None = None
    ) -> None:
        """Have `load` change the weights with no token computed meanwhile, and stamp `version` from the next one on.

        `load` is told whether keys and values of running requests stay. `staged` is what a server that is started
        again loads, None if this worker does not hold it.

        Raises:
            WeightSyncError: servers fail to load it. The version before serves.
            GenerationFailed: the engine was closed, or its server given up.
        """
        self._slots.shut()
        try:
            await self._traces.end()
            await self._loaded(version, load)
            before, self._served, self._state.version = self._served, staged, version
            if before is not None:
                before.close()
            await self._traces.begin(version + 1)
        finally:
            if self._state.paused is None:
                await self.resume()

    async def resume(self) -> None:
        """Have the server compute, and let requests go to it.

        Raises:
            GenerationFailed: the engine was closed, or its server given up.
        """
        try:
            await self._server.asked(self._dialect.resume)
        except GenerationFailed:
            if self._server.lost is not None:
                raise
            await self._server.replace(await self._server.api())  # the next one is not paused
        self._slots.open()

    def abort(self) -> None:
        """Drop what is held and what arrives. Idempotent."""
        for arrival in self._arrivals:
            arrival.stop.set()
            arrival.given_up.set()
        held, self._held = self._held, None
        if held is not None:
            held.close()

    async def revive(self, api: Api) -> None:
        """Bring a server that was started again to the weights and the pause of the one that died.

        Raises:
            GenerationFailed: this worker does not hold the weights.
        """
        if self._served is None and self._state.version > 0:
            raise GenerationFailed(
                f"weights of version {self._state.version} are not held by this worker",
                why="they were received by the engine's own workers (rollout.options.direct)",
            )
        if self._served is None and self._state.paused is None:
            return
        await self._dialect.pause(api, self._state.paused or PauseMode.KEEP)
        loaded = None
        while self._served is not None and loaded is not self._served:
            loaded = self._served
            await self._load(api, loaded)
        if self._state.paused is None:
            await self._dialect.resume(api)

    def close(self) -> None:
        """Free everything. A source that blocks the staging thread frees its part when it gives up."""
        self.abort()
        served, self._served = self._served, None
        if served is not None:
            served.close()
        self._thread.shutdown(wait=False)

    async def _staged(self, arrival: _Arrival, source: WeightSource) -> StagedWeights:
        served = self._state.version
        work = self._thread.submit(self._staging.receive, source, arrival.version, served=served, stop=arrival.stop)
        try:
            return await self._unless_given_up(arrival, asyncio.wrap_future(work))
        except BaseException:
            arrival.stop.set()
            if work.cancel():
                source.close()
            else:
                work.add_done_callback(_discard)
            raise

    async def _unless_given_up(self, arrival: _Arrival, answer: Awaitable[T]) -> T:
        task, given_up = asyncio.ensure_future(answer), asyncio.ensure_future(arrival.given_up.wait())
        try:
            await asyncio.wait((task, given_up), return_when=asyncio.FIRST_COMPLETED)
            if arrival.given_up.is_set():
                raise self._server.lost or WeightSyncError(f"receiving version {arrival.version} was aborted")
            return task.result()
        finally:
            task.cancel()
            given_up.cancel()
            await asyncio.gather(task, given_up, return_exceptions=True)

    def _hold(self, staged: StagedWeights) -> None:
        before, self._held = self._held, staged
        if before is not None:
            before.close()

    async def _load(self, api: Api, staged: StagedWeights) -> None:
        await self._loader.load(api, staged.folder, staged.version, keep_cache=self._keep_cache)

    async def _loaded(self, version: int, load: Callable[[Api, bool], Awaitable[None]]) -> None:
        failure: Exception | None = None
        for _ in range(MAX_LOADS):
            api = await self._server.asked(self._frozen)
            try:
                await load(api, self._keep_cache)
            except Exception as error:  # whatever it was, nobody knows which weights this server has
                failure = error
                await self._server.replace(api)
            else:
                return
        raise WeightSyncError(f"the engine did not load version {version}", why=str(failure)) from failure

    async def _frozen(self, api: Api) -> Api:
        if self._state.paused is None:
            await self._dialect.pause(api, PauseMode.KEEP)
        return api


def _discard(work: Future[StagedWeights]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _compare(staged: Mapping[str, str], proved: Mapping[str, str]) -> None:
    wrong = [name for name, digits in staged.items() if proved.get(name) != digits]
    if wrong:
        raise FingerprintMismatch(
            f"the engine's workers read other bytes of {wrong[0]!r} than were staged",
            why=f"{len(wrong)} of {len(staged)} tensors differ",
            fix="check for failing memory, or a folder that something else changed",
        )
