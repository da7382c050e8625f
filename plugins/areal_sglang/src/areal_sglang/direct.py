"""How the ranks of an SGLang server are told to take weights from a sender's process group, in place.

Knows: SGLang's routes for a weight-update group.
Does not know: pauses, which version serves, or when anything is asked (`areal_serving.direct`).
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_core.contract.errors import CoverageError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.weights import WeightManifest
from areal_serving.agreement import agreed
from areal_serving.direct import DirectRanks
from areal_serving.http import Api
from areal_serving.weights import bucket_specs
from areal_sglang.asking import ask
from areal_sglang.dialect import flush
from areal_torch.collective.rank_slot import RankSlot

_BUCKET_BYTES = 512 * 2**20
"""Held beside the weights while they are loaded."""


class SGLangDirect:
    """The `DirectDialect` of SGLang servers."""

    async def ranks(self, api: Api, spec: InferenceSpec) -> DirectRanks:
        """Return the tensor ranks of the server."""
        return DirectRanks(count=spec.layout.get("t", 1), device=spec.device.partition(":")[0])

    async def join(self, api: Api, slot: RankSlot, held: str) -> None:
        """Have every rank leave the group it has, and join this one."""
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

    async def take(self, api: Api, slot: RankSlot, manifest: WeightManifest) -> None:
        """Begin an update, have the ranks take one bucket after the other, and end it, which packs the layers."""
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

    async def received(self, api: Api) -> Mapping[str, str]:
        """Return what every rank took.

        Raises:
            CoverageError, FingerprintMismatch: a loader passed over a tensor, or two ranks took other bytes.
        """
        ranks = await ask(api, "received")
        passed = sorted({name for rank in ranks for name in rank["passed_over"]})
        if passed:
            raise CoverageError(f"SGLang passed over tensor {passed[0]!r}", why=f"{len(passed)} such")
        return agreed([rank["fingerprints"] for rank in ranks], "SGLang")

    async def stamp(self, api: Api, version: int, *, keep_cache: bool) -> None:
        """Stamp the version from the next token on."""
        await api.post("/pause_generation", {"mode": "in_place" if keep_cache else "retract"})
        await api.post("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})
        if not keep_cache:
            await flush(api)
