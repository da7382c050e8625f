"""Trainers that do not give their memory back, or do not get it back whole.

Knows: the spill of the second trainer.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.train import TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, row, then
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.spill import Spill

ENGINE = "train/second"
breaks = breaking(ENGINE, SecondTrainEngine)


class Spilling(SecondTrainEngine):
    """Moves another part of the table away than all of it."""

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super()._build(spec, ranks, device, dtype)
        return attrs.evolve(here, spill=Spill([tensor for name, tensor in here.table.items() if self.moves(name)]))

    def moves(self, name: str) -> bool:
        """Tell whether a tensor is moved away."""
        return True


@breaks("offload", "train.offload.frees", row="sleep-is-real", _turns=0)
def OffloadsOnlyOnce(original: Original, self: Any) -> None:
    """Frees its memory at the first `offload`, and at no later one."""
    if self._turns == 0:
        original()
    self._turns += 1


@breaks("onload", "train.offload.exact")
def OnloadForgetsSecondMoments(original: Original, self: SecondTrainEngine) -> None:
    """Brings weights and first moments back; second moments begin at zero again."""
    out = self._open().spill.out
    original()
    if out:
        _empty({n: t for n, t in self._running().table.items() if n.startswith("second/")})


@breaks("onload", "train.offload.ranks", ranks=2)
def OtherRanksForget(original: Original, self: SecondTrainEngine) -> None:
    """Brings everything back on rank 0; on the other ranks the moments begin at zero again."""
    here = self._open()
    out = here.spill.out
    original()
    if out and here.ranks.rank > 0:
        _empty(here.adam.moments if here.adam is not None else {})


@mutant(ENGINE, killers=("train.offload.exact", "train.offload.state"))
class OnloadsTheFirstCopy(SecondTrainEngine):
    """Writes the weights out once, and brings that copy back ever after."""

    _first: dict[str, Tensor] | None = None

    def offload(self) -> None:
        here = self._open()
        if self._first is None and not here.spill.out:
            self._first = {name: tensor.detach().clone() for name, tensor in here.table.items()}
        super().offload()

    def onload(self) -> None:
        out = self._open().spill.out
        super().onload()
        if out and self._first is not None:
            with torch.no_grad():
                for name, tensor in self._running().table.items():
                    tensor.copy_(self._first[name])


@mutant(ENGINE, killers=("train.offload.exact",))
class SecondOffloadLosesAll(SecondTrainEngine):
    """Offloads what is already gone: a second `offload` overwrites the copy with nothing."""

    _calls = 0

    def offload(self) -> None:
        self._calls += 1
        super().offload()

    def onload(self) -> None:
        super().onload()
        if self._calls > 1:
            _empty(dict(self._running().table))
        self._calls = 0


@mutant(ENGINE, killers=("train.offload.use",), row="sleep-is-real")
class ComputesWithNothing(SecondTrainEngine):
    """Answers calls while offloaded, with weights of zero."""

    _kept: dict[str, Tensor] | None = None

    def offload(self) -> None:
        if self._kept is None:
            table = self._open().table
            self._kept = {name: tensor.detach().clone() for name, tensor in table.items()}
            _empty(dict(table))

    def onload(self) -> None:
        kept, self._kept = self._kept, None
        with torch.no_grad():
            for name, tensor in self._open().table.items():
                if kept is not None:
                    tensor.copy_(kept[name])


ROWS = breaks.rows(
    row("OffloadIsAFlag", "Remembers that it was offloaded, and frees nothing.", "train.offload.frees",
        "train.offload.frozen", incident="vLLM#45585", row="sleep-is-real", offload=lambda self: self._open(),
        onload=lambda self: self._open()),
    row("OptimizerStays", "Moves the weights away; both moments of the optimizer stay on the device.",
        "train.offload.frees", row="sleep-is-real", base=Spilling, moves=lambda name: name.startswith("weights/")),
    row("WeightsStay", "Moves the optimizer away; the weights stay on the device.", "train.offload.frees",
        "train.offload.frozen", row="sleep-is-real", base=Spilling, moves=lambda name: not name.startswith("weights/")),
    row("VersionLostOnloadOffDevice", "Comes back as version 0.", "train.offload.exact",
        onload=then(lambda self: setattr(self, "version", 0))),
    row("CloseNeedsTheDevice", "Cannot be closed while it is offloaded.", "train.offload.close",
        close=before(lambda self: self.weights_in_use() if self._started is not None else None)),
)  # fmt: skip


def _empty(tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
