"""Weights that the server's own ranks take from the sender's broadcasts and load as they come, without a host copy.

Knows: SGLang's routes for a weight-update group, the slots of a streamed transfer.
Does not know: pauses, or which version serves (`engine`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import frozen

from areal_core.contract.errors import CoverageError, FingerprintMismatch, WeightSyncError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_serving.http import Api
from areal_serving.server_lifecycle import ServerLifecycle
from areal_serving.weights import bucket_specs, num_bytes
from areal_sglang.asking import ask
from areal_sglang.dialect import flush
from areal_torch.collective.rank_slot import RankSlot, SlotSource

_BUCKET_BYTES = 512 * 2**20
"""Held beside the weights while they are loaded."""


class SlotWeightSource(WeightSource, SlotSource, Protocol):
    """A source whose sender streams to the ranks of an engine."""


@frozen(kw_only=True)
class Taken:
    """A version the ranks of one server loaded already, and stamp at commit."""

    version: int
    api: Api


class Direct:
    """What arrived without a host copy. `ranks` of the server's own take part, on `device`. One event loop."""

    def __init__(self, ranks: int, device: str) -> None:
        self._ranks = ranks
        self._device = device
        self._group = ""
        self._group_of: Api | None = None
        self._arriving: SlotWeightSource | None = None
        self._taken: Taken | None = None

    async def receive(
        self,
        server: ServerLifecycle,
        source: SlotWeightSource,
        version: int,
        check: Callable[[WeightManifest], None],
    ) -> Receipt:
        """Take every tensor into the model of a paused server; a failure after `check` costs it a restart.

        Raises:
            WeightSyncError, CoverageError, FingerprintMismatch: the sender gave up, or not all of it was loaded.
            ServerAnswer, ServerGone: of the server.
        """
        started, api = time.monotonic(), await server.api()
        held = self._group if self._group_of is api else ""
        self._arriving = source
        try:
            manifest = await asyncio.to_thread(_announced, source)
            check(manifest)
            self._group = ""
            try:
                self._group = await self._take(api, source, manifest, held)
                fingerprints = await _received(api)
            except BaseException:
                await server.replace(api)  # half an update is loaded
                raise
        finally:
            self._arriving = None
        self._group_of, self._taken = api, Taken(version=version, api=api)
        size = sum(num_bytes(spec) for spec in manifest.tensors)
        seconds = time.monotonic() - started
        return Receipt(version=version, num_bytes=size, seconds=seconds, fingerprints=fingerprints)

    def taken(self, version: int) -> Taken | None:
        """Return, once, what waits to be stamped as `version`."""
        taken = self._taken
        if taken is None or taken.version != version:
            return None
        self._taken = None
        return taken

    async def abort(self, server: ServerLifecycle) -> None:
        """End what arrives; replace the server whose old weights are gone. Idempotent."""
        if self._arriving is not None:
            self._arriving.close()
        taken, self._taken = self._taken, None
        if taken is not None:
            await server.replace(taken.api)

    async def _take(self, api: Api, source: SlotWeightSource, manifest: WeightManifest, held: str) -> str:
        slot = await asyncio.to_thread(source.take_slot, self._ranks, device=self._device, held=held)
        if slot.group_name != held:
            await _join(api, slot, held)
        await api.post("/begin_weight_update", {"selector": "all"}, timeout_s=slot.timeout_s)
        for bucket in bucket_specs(manifest.tensors, _BUCKET_BYTES):
            body = {
                "names": [spec.name for spec in bucket],
                "dtypes": [spec.dtype for spec in bucket],
                "shapes": [list(spec.shape) for spec in bucket],
                "group_name": slot.group_name,
                "flush_cache": False,
                "abort_all_requests": False,
            }
            await api.post("/update_weights_from_distributed", body, timeout_s=slot.timeout_s)
        await api.post("/end_weight_update", {}, timeout_s=slot.timeout_s)
        await asyncio.to_thread(source.wait_finished)
        return slot.group_name


def _announced(source: SlotWeightSource) -> WeightManifest:
    """Wait for what the sender announces."""
    return source.manifest


async def stamp(api: Api, taken: Taken, *, keep_cache: bool) -> None:
    """Have the server that took a version stamp it from the next token on.

    Raises:
        WeightSyncError: it is another server.
    """
    if api is not taken.api:
        raise WeightSyncError(f"the server that took version {taken.version} is gone")
    await api.post("/pause_generation", {"mode": "in_place" if keep_cache else "retract"})
    await api.post("/update_weight_version", {"new_version": str(taken.version), "abort_all_requests": False})
    if not keep_cache:
        await flush(api)


async def _received(api: Api) -> Mapping[str, str]:
    answers = await ask(api, "received")
    passed = sorted({name for rank in answers for name in rank["passed_over"]})
    if passed:
        raise CoverageError(f"SGLang passed over tensor {passed[0]!r}", why=f"{len(passed)} such")
    first: Mapping[str, str] = answers[0]["fingerprints"]
    if any(answer["fingerprints"] != first for answer in answers):
        raise FingerprintMismatch("two ranks of the SGLang server hold different bytes")
    return first


async def _join(api: Api, slot: RankSlot, held: str) -> None:
    if held:
        await api.post("/destroy_weights_update_group", {"group_name": held})
    body = {
        "master_address": slot.address,
        "master_port": slot.port,
        "rank_offset": slot.first_rank,
        "world_size": slot.world_size,
        "group_name": slot.group_name,
        "backend": slot.backend,
    }
    await api.post("/init_weights_update_group", body, timeout_s=slot.timeout_s)
