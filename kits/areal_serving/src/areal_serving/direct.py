"""Weights from the sender's process group straight into a server's own ranks, in place: no host copy, no way back.

    class MyDirect:                       # a DirectDialect
        async def ranks(self, api, spec): return DirectRanks(count=1, device="cpu")
        async def join(self, api, slot, held): ...
    super().__init__(MyDialect(), options, direct=MyDirect())

Knows: in which order the two sides are told, which server holds a version that is not serving yet.
Does not know: routes (`DirectDialect`), pauses and restarts (`updates`, `server_lifecycle`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import frozen

from areal_core.contract.errors import VersionRegressed, WeightSyncError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_serving.calls import State
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.model import ServedModel
from areal_serving.server_lifecycle import ServerLifecycle
from areal_serving.updates import Updates
from areal_serving.weights import num_bytes
from areal_serving.work import Work
from areal_torch.collective.rank_slot import RankSlot, SlotSource


class SlotWeightSource(WeightSource, SlotSource, Protocol):
    """A source whose sender streams to the ranks of an engine."""


@frozen(kw_only=True)
class DirectRanks:
    """The ranks of a server that take part. `device` tells it from others, as `areal_torch.collective.group.place`.

    `signs` tells that they join by `areal_torch.collective.group.BroadcastGroup`: no stranger can join for them.
    """

    count: int
    device: str
    signs: bool = False


class DirectDialect(Protocol):
    """How a server's own ranks are told to take weights. Raises `ServerAnswer` and `ServerGone` like a `Dialect`."""

    async def ranks(self, api: Api, spec: InferenceSpec) -> DirectRanks:
        """Return who takes part."""

    async def join(self, api: Api, slot: RankSlot, held: str) -> None:
        """Have them join the group of `slot`, and leave the one named `held` unless it is ""."""

    async def take(self, api: Api, slot: RankSlot, manifest: WeightManifest) -> None:
        """While paused: have them take every tensor of the manifest, in its order, and load it as it comes."""

    async def received(self, api: Api) -> Mapping[str, str]:
        """Return name -> fingerprint of what all of them took.

        Raises:
            FingerprintMismatch, CoverageError: they differ, or the model has no place for a tensor.
        """

    async def stamp(self, api: Api, version: int, *, keep_cache: bool) -> None:
        """While paused: serve what was taken, as `version` from the next token on."""


class DirectTransfer:
    """What the ranks of one engine's server took, and have not served yet. One event loop."""

    def __init__(
        self,
        dialect: DirectDialect,
        spec: InferenceSpec,
        *,
        model: ServedModel,
        server: ServerLifecycle,
        state: State,
        updates: Updates,
        work: Work,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._dialect = dialect
        self._spec = spec
        self._model = model
        self._server = server
        self._state = state
        self._updates = updates
        self._work = work
        self._clock = clock
        self._group = ""
        self._group_of: Api | None = None
        self._arriving: SlotWeightSource | None = None
        self._touched: Api | None = None
        """The server whose weights are half or wholly overwritten, and not stamped."""
        self._taken: int | None = None
        """The version that lies whole in it."""

    def holds(self, version: int) -> bool:
        """Tell whether `version` was taken and waits to be committed."""
        return self._taken == version

    async def receive(self, source: SlotWeightSource, version: int) -> Receipt:
        """Have the ranks of a paused server take one version; if that fails once they began, the server is replaced.

        Raises:
            CoverageError, VersionRegressed: nothing was touched.
            WeightSyncError: the engine is not paused, the sender gave up, or the server did not take all of it.
        """
        try:
            return await self._work.alone(self._receive(source, version))
        finally:
            source.close()

    async def commit(self, version: int) -> None:
        """Have the server compute with what it took, from the next token on.

        Raises:
            WeightSyncError: the server that took it is gone, or fails to.
        """
        taken_by, self._touched, self._taken = self._touched, None, None

        async def stamp(api: Api, keep_cache: bool) -> None:
            if api is not taken_by:
                raise WeightSyncError(
                    f"the server that took version {version} is gone",
                    why="weights taken in place are lost with it",
                    fix="send the version again",
                )
            await self._dialect.stamp(api, version, keep_cache=keep_cache)

        await self._updates.change(version, stamp)

    async def abort(self) -> None:
        """End what arrives; replace a server whose old weights are gone. Idempotent."""
        self.stop()
        touched, self._touched, self._taken = self._touched, None, None
        if touched is not None:
            await self._server.replace(touched)

    def stop(self) -> None:
        """End what arrives, with the transfer for everybody. Idempotent."""
        if self._arriving is not None:
            self._arriving.close()

    async def _receive(self, source: SlotWeightSource, version: int) -> Receipt:
        served = self._state.version
        if version <= served:
            raise VersionRegressed(
                f"weights of version {version} were offered", why=f"version {served} is serving already"
            )
        if self._state.paused is None:
            raise WeightSyncError("weights arrive in place", why="the engine is not paused", fix="pause it first")
        started, api = self._clock(), await self._server.api()
        self._arriving = source
        try:
            manifest = await asyncio.to_thread(lambda: source.manifest)  # blocks until the sender announced it
            self._model.check(manifest)
            fingerprints = await self._take(api, source, manifest)
        except (ServerAnswer, ServerGone) as error:
            raise WeightSyncError(f"version {version} did not arrive whole", why=str(error)) from error
        finally:
            self._arriving = None
            if self._touched is api and self._taken is None:
                self._touched = None
                await self._server.replace(api)
        size = sum(num_bytes(spec) for spec in manifest.tensors)
        return Receipt(version=version, num_bytes=size, seconds=self._clock() - started, fingerprints=fingerprints)

    async def _take(self, api: Api, source: SlotWeightSource, manifest: WeightManifest) -> Mapping[str, str]:
        held = self._group if self._group_of is api else ""
        ranks = await self._dialect.ranks(api, self._spec)
        slot = await asyncio.to_thread(source.take_slot, ranks.count, device=ranks.device, held=held, signs=ranks.signs)
        if slot.group_name != held:
            self._group = ""
            await self._dialect.join(api, slot, held)
            self._group, self._group_of = slot.group_name, api
        self._touched, self._taken = api, None
        await self._dialect.take(api, slot, manifest)
        await asyncio.to_thread(source.wait_finished)
        fingerprints = await self._dialect.received(api)
        self._taken = manifest.version
        return fingerprints
