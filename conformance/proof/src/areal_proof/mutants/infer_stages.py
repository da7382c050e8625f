"""Engines that mix up what they hold between the two phases: versions dropped, broken off, or replaced.

Knows: how staging of the second inference engine can be bent.
Does not know: how it is caught.
"""

from __future__ import annotations

from torch import Tensor

from areal_core.contract.weights import Receipt, WeightSource
from areal_proof.mutants import mutant
from areal_proof.mutants.infer_core_weights import Passing
from areal_proof.second.infer.engine import SecondInferenceEngine


@mutant("infer/second", killers=("infer.stages.abort_meanwhile",), row="update-chain")
class AbortMissesWhatIsComing(SecondInferenceEngine):
    """Drops what is held and not what is still coming: an aborted transfer goes on and is held ready."""

    async def abort_weights(self) -> None:
        self._require()
        self._staged = None


class _Keeping(Passing):
    came: dict[str, Tensor]

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        self.came[name] = tensor.clone()
        return tensor


@mutant("infer/second", killers=("infer.stages.broken_over_held",), row="update-chain")
class BrokenTransferOverHeld(SecondInferenceEngine):
    """Takes a transfer into the buffers of the version held, and holds that one still when it breaks off."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        held, keeping = self._staged, _Keeping(source)
        keeping.came = {}
        try:
            return await super().receive_weights(keeping, version)
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
