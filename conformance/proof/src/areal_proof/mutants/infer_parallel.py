"""Engines whose ranks or stages do not agree, or that mix up what they hold between the two phases.

Knows: how the second inference engine holds weights, cuts its layers, and stages updates.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.inference import InferenceSpec
from areal_core.contract.weights import WeightSource
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, put
from areal_proof.mutants.weight_parts import PassingSource
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.ranks import CUT_BY_INPUT, Cut
from areal_proof.second.infer.requests import Slot

breaks = breaking("infer/second", SecondInferenceEngine)


def of_two(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights whose linear layers are of `first` in the first rank of two and of `last` in the other."""
    found = {}
    for name, tensor in first.items():
        dim = 1 if name.removesuffix(".weight").endswith(CUT_BY_INPUT) else 0
        halves = tensor.chunk(2, dim)[0], last[name].chunk(2, dim)[1]
        found[name] = tensor if tensor.ndim == 1 else torch.cat(halves, dim)
    return found


@breaks("start", "infer.parallel.tokens")
async def OneRankOfTheSum(original: Original, self: SecondInferenceEngine, spec: InferenceSpec) -> Any:
    """Leaves out the results of the last rank where results are to be summed."""
    info = await original()
    if spec.layout.get("t", 1) > 1:
        whole = self.require_weights()
        empty = {n: t * 0 if n.removesuffix(".weight").endswith(CUT_BY_INPUT) else t for n, t in whole.items()}
        self.weights = of_two(whole, empty)
    return info


@breaks("commit_weights", "infer.parallel.update")
async def OneRankKeepsTheOld(original: Original, self: SecondInferenceEngine) -> None:
    """Loads an update in the first rank only."""
    before = self.require_weights()
    await original()
    if self.require().cut.ranks > 1:
        self.weights = of_two(self.require_weights(), before)


@mutant("infer/second", killers=("infer.parallel.in_flight",))
class OneRankIsLate(SecondInferenceEngine):
    """Has the first rank compute three more tokens with the old weights after the others changed."""

    _late: dict[str, Tensor] | None = None
    _turns = 0

    async def commit_weights(self, version: int) -> None:
        before = self.require_weights()
        await super().commit_weights(version)
        if self.require().cut.ranks > 1:
            self._late, self._turns = of_two(before, self.require_weights()), 3

    def next_logits(self, slot: Slot) -> tuple[Tensor, Tensor | None]:
        if self._late is None or not self._turns:
            return super().next_logits(slot)
        self._turns -= 1
        with put(self, weights=self._late):
            return super().next_logits(slot)


def of_stages(cut: Cut, first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that are of `first` in the first stage and of `last` in the others."""
    return {name: last[name] if cut.stage(name) else tensor for name, tensor in first.items()}


@breaks("start", "infer.pipeline.tokens")
async def StageLeftOut(original: Original, self: SecondInferenceEngine) -> Any:
    """Has the last stage of a pipeline hand on what it got: its layers add nothing."""
    info = await original()
    cut = self.require().cut
    if cut.stages > 1:
        whole = self.require_weights()
        empty = {n: t * 0 if n.removesuffix(".weight").endswith(CUT_BY_INPUT) else t for n, t in whole.items()}
        self.weights = of_stages(cut, whole, empty)
    return info


@breaks("commit_weights", "infer.pipeline.update")
async def OneStageKeepsTheOld(original: Original, self: SecondInferenceEngine) -> None:
    """Loads an update in the first stage of a pipeline only."""
    before = self.require_weights()
    await original()
    cut = self.require().cut
    if cut.stages > 1:
        self.weights = of_stages(cut, self.require_weights(), before)


@mutant("infer/second", killers=("infer.pipeline.in_flight",))
class TokenOfTwoVersions(SecondInferenceEngine):
    """Swaps weights with a batch between two stages: its next token is of the old version up to there."""

    _mixed: dict[str, Tensor] | None = None

    async def commit_weights(self, version: int) -> None:
        before = self.require_weights()
        await super().commit_weights(version)
        cut = self.require().cut
        if cut.stages > 1:
            self._mixed = of_stages(cut, before, self.require_weights())

    def next_logits(self, slot: Slot) -> tuple[Tensor, Tensor | None]:
        mixed, self._mixed = self._mixed, None
        if mixed is None or not slot.output:
            return super().next_logits(slot)
        with put(self, weights=mixed):
            return super().next_logits(slot)


@breaks("abort_weights", "infer.stages.abort_meanwhile", row="update-chain")
def AbortMissesWhatIsComing(self: SecondInferenceEngine) -> None:
    """Drops what is held and not what is still coming: an aborted transfer goes on and is held ready."""
    self.require()
    self.staged = None


class _Keeping(PassingSource):
    came: dict[str, Tensor]

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        self.came[name] = tensor.clone()
        return tensor


@breaks("receive_weights", "infer.stages.broken_over_held", row="update-chain")
async def BrokenTransferOverHeld(
    original: Original, self: SecondInferenceEngine, source: WeightSource, version: int
) -> Any:
    """Takes a transfer into the buffers of the version held, and holds that one still when it breaks off."""
    held, keeping = self.staged, _Keeping(source)
    keeping.came = {}
    try:
        return await original(keeping, version)
    except Exception:
        if held is not None:
            held.tensors.update(keeping.came)
            self.staged = held
        raise


_MATRIX = "model.layers.0.mlp.up_proj.weight"


@breaks("commit_weights", "infer.stages.no_leftovers", row="update-chain", left={},
    abort_weights=before(lambda self: setattr(self, "left", {_MATRIX: self.staged.tensors[_MATRIX]})
        if self.staged is not None else None))  # fmt: skip
async def DroppedMatrixComesBack(original: Original, self: Any) -> None:
    """Serves one matrix of an aborted version with the next version that is committed."""
    if self.staged is not None:
        self.staged.tensors.update(self.left)
    self.left = {}
    await original()
