"""How vLLM's workers are told to take weights from a sender's process group, in place.

Knows: vLLM's routes for a weight-transfer engine.
Does not know: the group itself (`inside.transfer`), or when anything is asked (`areal_serving.direct`).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from areal_core.contract.inference import InferenceSpec
from areal_core.contract.weights import WeightManifest
from areal_serving.agreement import agreed
from areal_serving.direct import DirectRanks
from areal_serving.http import Api
from areal_torch.collective.rank_slot import RankSlot
from areal_vllm.dialect import FORGET_IMAGES, rpc


class VLLMDirect:
    """The `DirectDialect` of vLLM servers."""

    async def ranks(self, api: Api, spec: InferenceSpec) -> DirectRanks:
        """Ask the workers where they are."""
        workers = await rpc(api, "areal_prepare")
        return DirectRanks(count=len(workers), device=workers[0]["place"], signs=True)

    async def join(self, api: Api, slot: RankSlot, held: str) -> None:
        """Have every worker join; it leaves the group it has by itself."""
        await api.post("/init_weight_transfer_engine", {"init_info": attrs.asdict(slot)}, timeout_s=slot.timeout_s)

    async def take(self, api: Api, slot: RankSlot, manifest: WeightManifest) -> None:
        """Open the layers, and load what comes."""
        expected = {
            "names": [spec.name for spec in manifest.tensors],
            "dtypes": [spec.dtype for spec in manifest.tensors],
            "shapes": [list(spec.shape) for spec in manifest.tensors],
        }
        await api.post("/start_weight_update")
        await api.post("/update_weights", {"update_info": expected}, timeout_s=None)

    async def received(self, api: Api) -> Mapping[str, str]:
        """Return what every worker took.

        Raises:
            FingerprintMismatch: two took other bytes.
        """
        return agreed(await rpc(api, "areal_received"), "vLLM")

    async def stamp(self, api: Api, version: int, *, keep_cache: bool) -> None:
        """Pack the layers and stamp the version."""
        await api.post("/finish_weight_update", {"weight_version": str(version)}, timeout_s=None)
        await api.post(FORGET_IMAGES)
        if not keep_cache:
            await api.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
