"""New weights, from their source to the next token: staged, proved, held, loaded.

Knows: which versions are held, and in which order a server is told.
Does not know: the form of staged weights (`staging`), or how an engine loads them (`dialect`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from areal_core.contract.errors import FingerprintMismatch, GenerationFailed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.arrivals import Arrivals, not_held
from areal_serving.calls import State
from areal_serving.dialect import Dialect
from areal_serving.http import Api
from areal_serving.options import CacheOnUpdate
from areal_serving.profiling import ServedTraces
from areal_serving.server_lifecycle import ServerLifecycle
from areal_serving.slots import Slots
from areal_serving.staging import StagedWeights, Staging

MAX_LOADS = 2
"""Servers that may fail to load one version before the update is given up."""


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
        self._arrivals = Arrivals(staging, lambda: server.lost)
        self._traces = traces
        self._keep_cache = kv is CacheOnUpdate.KEEP
        self._served: StagedWeights | None = None

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
        return await self._arrivals.receive(source, version, served=self._state.version, prove=self._prove)

    async def commit(self, version: int) -> None:
        """Have the server load what is held, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held; or servers fail to load it. The one before serves.
            GenerationFailed: the engine was closed, or its server given up.
        """
        arrivals = self._arrivals
        held = arrivals.held
        if held is None or held.version != version:
            if version == self._state.version:
                return
            raise not_held(held, version)
        arrivals.held = None  # whatever arrives or is aborted meanwhile leaves alone what is being loaded
        try:
            await self.change(version, lambda api, _: self._load(api, held), held)
        except BaseException:
            if arrivals.held is None and self._served is not held:
                arrivals.held = held
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
        self._arrivals.abort()

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
        """Free everything."""
        self._arrivals.close()
        served, self._served = self._served, None
        if served is not None:
            served.close()

    async def _prove(self, staged: StagedWeights) -> None:
        proved = await self._server.asked(lambda api: self._loader.prove(api, staged.told))
        _compare(staged.receipt.fingerprints, proved)

    async def _load(self, api: Api, staged: StagedWeights) -> None:
        await self._loader.load(api, staged.told, staged.version, keep_cache=self._keep_cache)

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


def _compare(staged: Mapping[str, str], proved: Mapping[str, str]) -> None:
    wrong = [name for name, digits in staged.items() if proved.get(name) != digits]
    if wrong:
        raise FingerprintMismatch(
            f"the engine's workers read other bytes of {wrong[0]!r} than were staged",
            why=f"{len(wrong)} of {len(staged)} tensors differ",
            fix="check for failing memory, or a folder that something else changed",
        )
