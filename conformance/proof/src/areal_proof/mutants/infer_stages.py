"""Engines that mix up what they hold between the two phases: versions dropped, broken off, or replaced.

Knows: how staging of the second inference engine can be bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from areal_core.contract.weights import WeightSource
from areal_proof.mutants import mutant
from areal_proof.mutants.infer_core_weights import Passing
from areal_proof.mutants.rows import Original, breaking
from areal_proof.second.infer.engine import SecondInferenceEngine

breaks = breaking("infer/second", SecondInferenceEngine)


@breaks("abort_weights", "infer.stages.abort_meanwhile", row="update-chain")
def AbortMissesWhatIsComing(self: SecondInferenceEngine) -> None:
    """Drops what is held and not what is still coming: an aborted transfer goes on and is held ready."""
    self._require()
    self._staged = None


class _Keeping(Passing):
    came: dict[str, Tensor]

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        self.came[name] = tensor.clone()
        return tensor


@breaks("receive_weights", "infer.stages.broken_over_held", row="update-chain")
async def BrokenTransferOverHeld(
    original: Original, self: SecondInferenceEngine, source: WeightSource, version: int
) -> Any:
    """Takes a transfer into the buffers of the version held, and holds that one still when it breaks off."""
    held, keeping = self._staged, _Keeping(source)
    keeping.came = {}
    try:
        return await original(keeping, version)
    except Exception:
        if held is not None:
            held.tensors.update(keeping.came)
            self._staged = held
        raise


@mutant("infer/second", killers=("infer.stages.no_leftovers",), row="update-chain")
class DroppedMatrixComesBack(SecondInferenceEngine):
    """Serves one matrix of an aborted version with the next version that is committed."""

    async def abort_weights(self) -> None:
        if self._staged is not None:
            name = "model.layers.0.mlp.up_proj.weight"
            vars(self)["left"] = {name: self._staged.tensors[name]}
        await super().abort_weights()

    async def commit_weights(self, version: int) -> None:
        left: dict[str, Tensor] = vars(self).pop("left", {})
        if self._staged is not None:
            self._staged.tensors.update(left)
        await super().commit_weights(version)
