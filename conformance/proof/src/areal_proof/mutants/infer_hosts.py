"""Engines whose parts on several hosts are not one engine, or go on when one of them is gone.

Knows: how the parts of the second inference engine meet, ask one another, and hold versions.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import ReplicaPart
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, row
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.hosts import Leading
from areal_proof.second.infer.loading import Loaded

breaks = breaking("infer/second", SecondInferenceEngine)

ROWS = breaks.rows(
    row("FollowerTakesRequests", "Answers requests in a part that does not lead, from its share of the ranks.",
        "infer.hosts.refuses", require_lead=lambda: None),
    row("LeaderHoldsAlone", "Takes a version for held before the other parts have it.",
        "infer.hosts.held", _held_everywhere=lambda: _nothing()),
)  # fmt: skip


async def _nothing() -> None: ...


@breaks("_meet", "infer.hosts.update")
async def WrongNodeRank(original: Original, self: SecondInferenceEngine, part: ReplicaPart, loaded: Loaded) -> None:
    """Computes in every part with the ranks of the first."""
    await original(part, loaded)
    if self.following is not None:
        self.following._mine = slice(loaded.cut.ranks // part.num_hosts)


@breaks("weights_of", "infer.hosts.update", kept=None)
def FollowerKeepsTheOld(original: Original, self: Any, version: int) -> Mapping[str, Tensor] | None:
    """Computes with the weights it began with, whatever version the leader asks for."""
    found: Mapping[str, Tensor] | None = original()
    self.kept = found if self.kept is None else self.kept
    return None if found is None else self.kept


@breaks("receive_weights", "infer.hosts.update")
async def FollowerProvesNothing(original: Original, self: SecondInferenceEngine) -> Any:
    """Gives a receipt of no tensor in a part that does not lead."""
    receipt = await original()
    return receipt if self.following is None else attrs.evolve(receipt, fingerprints={})


@breaks("weights_of", "infer.hosts.stages", first=None)
def StageOfAHostKeepsTheOld(original: Original, self: Any) -> Mapping[str, Tensor] | None:
    """Computes the layers of a stage on another host with the weights it began with."""
    found: Mapping[str, Tensor] | None = original()
    self.first = found if self.first is None else self.first
    return self.first if found is not None and self.require().cut.stages > 1 else found


class _Alone(Leading):
    """Takes the share of a part that is gone for zeros, and says that all is well."""

    last: dict[str, tuple[int, ...]]

    def shares(self, x: Tensor, name: str) -> list[Tensor]:
        try:
            found = super().shares(x, name)
        except GenerationFailed:
            width = self.last[name]
            return [torch.zeros(*x.shape[:-1], *width)] * (self.num_hosts - 1)
        self.last[name] = found[0].shape[-1:]
        return found

    def check(self) -> None: ...


@breaks("_meet", "infer.hosts.lost")
async def LossUnnoticed(original: Original, self: SecondInferenceEngine) -> None:
    """Goes on without a part that is gone, as if that part had answered nothing but zeros."""
    await original()
    if self.leading is not None:
        self.leading.__class__, self.leading.last = _Alone, {}  # type: ignore[attr-defined]


@mutant("infer/second", killers=("infer.hosts.closed_alone",))
class WaitsForPartsThatNeverCome(SecondInferenceEngine):
    """Forgets, when it is closed, that it still listens for the other parts."""

    async def close(self) -> None:
        leading, self.leading = self.leading, None
        await super().close()
        if leading is not None and leading._lines:
            leading.close()
