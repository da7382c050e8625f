"""Weights from the sender's group straight into vLLM's workers, in place: no host copy, and no way back.

Knows: in which order the two sides meet.
Does not know: the group itself (`areal_torch.collective.rank_slot`, `inside.transfer`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from areal_core.contract.errors import FingerprintMismatch, VersionRegressed
from areal_core.contract.weights import Receipt, WeightManifest
from areal_serving.http import Api
from areal_serving.model import ServedModel
from areal_serving.weights import num_bytes
from areal_torch.collective.rank_slot import SlotSource
from areal_vllm.dialect import FORGET_IMAGES, rpc


class DirectTransfer:
    """What one server's workers hold of the sender's group, and the version that lies in them unfinished."""

    def __init__(self) -> None:
        self._group = ""
        self._api: Api | None = None
        self.version: int | None = None
        """Arrived whole, not yet packed; None if nothing is."""
        self.touched = False
        """The model is open or half overwritten: only `finish`, or another server, makes it whole."""

    async def receive(
        self, api: Api, source: SlotSource, manifest: WeightManifest, *, model: ServedModel, served: int
    ) -> Receipt:
        """Have every worker take part, and load what comes.

        Raises:
            CoverageError, VersionRegressed: nothing was touched.
            WeightSyncError, ServerAnswer, ServerGone: the server must be replaced.
        """
        version = manifest.version
        if version <= served:
            raise VersionRegressed(f"weights of version {version} were offered", why=f"version {served} is serving")
        started = time.perf_counter()
        model.check(manifest)
        if api is not self._api:
            self._group, self._api = "", api
        await self._join(api, source)
        self.touched = True
        await api.post("/start_weight_update")
        await api.post("/update_weights", {"update_info": _update_info(manifest)}, timeout_s=None)
        await asyncio.to_thread(source.wait_finished)
        fingerprints = _agreed(await rpc(api, "areal_received"))
        self.version = version
        return Receipt(
            version=version,
            num_bytes=sum(num_bytes(spec) for spec in manifest.tensors),
            seconds=time.perf_counter() - started,
            fingerprints=fingerprints,
        )

    async def finish(self, api: Api, version: int, *, keep_cache: bool) -> None:
        """Pack the layers and stamp the version. The server is paused."""
        await api.post("/finish_weight_update", {"weight_version": str(version)}, timeout_s=None)
        await api.post(FORGET_IMAGES)
        if not keep_cache:
            await api.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
        self.version, self.touched = None, False

    async def _join(self, api: Api, source: SlotSource) -> None:
        workers = await rpc(api, "areal_prepare")
        place, held = workers[0]["place"], self._group
        slot = await asyncio.to_thread(lambda: source.take_slot(len(workers), device=place, held=held))
        if slot.group_name != held:
            self._group = ""
            info = {"init_info": attrs.asdict(slot)}
            await api.post("/init_weight_transfer_engine", info, timeout_s=slot.timeout_s)
            self._group = slot.group_name


def _update_info(manifest: WeightManifest) -> dict[str, Any]:
    """Return what vLLM's workers are told to expect. Any: JSON."""
    return {
        "names": [spec.name for spec in manifest.tensors],
        "dtypes": [spec.dtype for spec in manifest.tensors],
        "shapes": [list(spec.shape) for spec in manifest.tensors],
    }


def _agreed(workers: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    for rank, other in enumerate(workers[1:], start=1):
        wrong = sorted(name for name in workers[0] if other.get(name) != workers[0][name])
        if wrong:
            raise FingerprintMismatch(f"vLLM workers 0 and {rank} received other bytes of {wrong[0]!r}")
    return workers[0]
