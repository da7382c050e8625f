"""Trainers that write another state than the one begun, or do not give their memory back or get it back whole.

Knows: the pending state and the spill of the second trainer.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_core.contract.errors import StorageError, TrainError
from areal_core.contract.train import TrainSpec
from areal_core.plugins.claims import not_yet
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, row, then
from areal_proof.mutants.train_parts import copied
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.pending import Pending
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.spill import Spill
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/second"
breaks = breaking(ENGINE, SecondTrainEngine)
breaks_reference = breaking("train/reference", ReferenceTrainEngine)


@mutant(ENGINE, killers=("train.background.exact", "train.background.company", "train.background.unseen"))
class WritesWhatItHoldsLater(SecondTrainEngine):
    """Takes no copy: what is written is whatever the weights are by then."""

    _path: Path | None = None

    def begin_state(self, path: Path) -> None:
        if self._path is not None:
            raise TrainError("a second state", why="one at a time")
        self._path = Path(path)

    def finish_state(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            self.save_state(path)


class Rewriting(SecondTrainEngine):
    """Changes a state that is finished, and makes its proof fit."""

    _path: Path | None = None

    def begin_state(self, path: Path) -> None:
        """Remember the path."""
        super().begin_state(path)
        self._path = Path(path)

    def finish_state(self) -> None:
        """Change the folder."""
        super().finish_state()
        path, self._path = self._path, None
        if path is not None:
            self.rewrite(path)
            proof = path / "proof-0.json"
            proof.write_text(
                json.dumps({file: checkpoint.digest_of(path / file) for file in json.loads(proof.read_text())})
            )

    def rewrite(self, folder: Path) -> None:
        """Change something."""


@breaks("rewrite", "train.background.exact", base=Rewriting)
def VersionOfTheEnd(self: Rewriting, folder: Path) -> None:
    """Writes the weights of the beginning under the version it has at the end."""
    index = json.loads((folder / "index.json").read_text())
    index["progress"]["version"] = self.version
    (folder / "index.json").write_text(json.dumps(index))


@breaks("rewrite", "train.background.exact", base=Rewriting)
def MomentsNotCopied(self: Rewriting, folder: Path) -> None:
    """Copies the weights out of the way, and shares the moments with the steps that follow."""
    adam, file = self.running().adam, folder / "part-0.safetensors"
    if adam is not None:
        save_file({**load_file(file), **{name: tensor.clone() for name, tensor in adam.moments.items()}}, file)


@breaks("begin_state", "train.background.order")
def TheSecondWins(original: Original, self: SecondTrainEngine) -> None:
    """Drops a state that was begun, silently, when another is."""
    pending, self.pending = self.pending, None
    if pending is not None:
        pending.drop()
    original()


class _Littering(Pending):
    def clean(self) -> None:
        """Leave it."""


class Pendings(SecondTrainEngine):
    """Writes its states by another class."""

    pending_class: type[Pending] = Pending

    def begin_state(self, path: Path) -> None:
        """Begin as ever, then as this class does."""
        super().begin_state(path)
        if self.pending is not None:
            self.pending.__class__ = self.pending_class


@breaks("finish_state", "train.background.full", _error=None)
def FailureStays(original: Original, self: Any) -> None:
    """Tells of a failed state at every `finish_state` after it."""
    if self._error is not None:
        raise self._error
    try:
        original()
    except StorageError as error:
        self._error = error
        raise


class _Leaving(Pending):
    def drop(self) -> None:
        """Leave what is written."""


class _LeavingFailures(Pending):
    def drop(self) -> None:
        """Wait, and remove what was written whole."""
        if self.job.exception() is None:
            super().drop()


def _kept_where_it_failed(original: Original, self: SecondTrainEngine) -> None:
    pending = self.pending
    try:
        original()
    except StorageError:
        self.pending = pending
        raise


class _TellingAtTheEnd(Pending):
    def drop(self) -> None:
        """Raise what writing raised."""
        super().drop()
        self.job.result()


class _AloneAtEnd(Pending):
    def finish(self) -> None:
        """Let rank 0 name the folder without asking whether the others could write."""
        if self.ranks.rank == 0:
            self.job.result()
            checkpoint.name(self.building, self.path, self.ranks)
        self.ranks.agree(lambda: None)


ROWS = breaks.rows(
    row("RandomStateOfTheEnd", "Writes the random state it has at the end.", "train.background.exact", base=Rewriting,
        rewrite=lambda folder: save_file({"cpu": torch.get_rng_state()}, folder / "random-0.safetensors")),
    row("ShownAtOnce", "Is done when it begins: the state is at its path before anybody has finished it.",
        "train.background.unseen", begin_state=then(lambda self: self.finish_state())),
    row("NeverWritten", "Says of a state that it is not written until somebody has waited for it.",
        "train.background.unseen", state_written=lambda self: self.pending is None),
    row("FailedIsNotWritten", "Says of a state whose writing failed that it is not written, and always will.",
        "train.background.failed",
        state_written=lambda original, self: original() and (self.pending is None
            or self.pending.job.exception() is None)),
    row("FailureKeepsTheNext", "Takes a state that failed for one that was begun and not finished, for ever.",
        "train.background.failed", finish_state=lambda original, self: _kept_where_it_failed(original, self)),
    row("CloseTellsOfFailures", "Raises what writing raised when it is closed.", "train.background.failed_close",
        base=Pendings, pending_class=_TellingAtTheEnd),
    row("CloseLeavesWhatFailed", "Removes a state nobody finished when it is closed, but one that failed half way.",
        "train.background.failed_close", base=Pendings, pending_class=_LeavingFailures),
    row("FinishNeedsABeginning", "Cannot finish where nothing was begun.", "train.background.order",
        finish_state=before(lambda self: TrainError("no state was begun", why="finish_state was called alone")
            if self.pending is None else None)),
    row("FallsOverOffloaded", "Falls over tensors of no bytes where a state is begun while they are offloaded.",
        "train.background.offloaded",
        begin_state=before(lambda self: RuntimeError("storages of no bytes") if self.opened().spill.out else None)),
    row("CopyingDraws", "Draws a random number for every state it begins.", "train.background.no_effect",
        begin_state=then(lambda: torch.rand(1))),
    row("OnlyTrainedStates", "Begins no state of a role without an optimizer.", "train.background.frozen",
        begin_state=before(lambda self: TrainError("nothing to write", why="the role is frozen")
            if self.running().adam is None else None)),
    row("FailuresLitter", "Leaves beside the path what it could write of a state that failed.",
        "train.background.full", base=Pendings, pending_class=_Littering),
    row("StateBeforeGoesFirst",
        "Makes room by removing the state that is at the path, before the new one is complete.",
        "train.background.full", begin_state=then(lambda path: shutil.rmtree(path, ignore_errors=True))),
    row("CloseLeavesTheRest", "Closes with a state half written, and leaves it beside the path.",
        "train.background.close", base=Pendings, pending_class=_Leaving),
    row("CloseFinishesIt", "Finishes a state nobody finished when it is closed.", "train.background.close",
        close=before(lambda self: self.finish_state() if self.started is not None else None)),
    row("RankZeroDecides", "Names the folder when rank 0 has written its part.", "train.background.ranks_full",
        base=Pendings, ranks=2, pending_class=_AloneAtEnd),
    row("FailuresForgotten", "Tells nobody that a state could not be written.", "train.background.full",
        "train.background.in_the_way", finish_state=catches(StorageError, lambda: None),
        begin_state=catches(StorageError, lambda self: setattr(self, "pending", None))),
)  # fmt: skip


@breaks("finish_state", "train.background.ranks", ranks=2)
def OtherRanksWriteLater(original: Original, self: SecondTrainEngine) -> None:
    """Copies the state on rank 0 only; the other ranks write what they hold when it is finished."""
    here, pending = self.running(), self.pending
    if here.ranks.rank > 0 and pending is not None:
        pending.job.result()
        checkpoint.writer(here.ranks, here.table, {}, {})(pending.building)
    original()


REFERENCE_ROWS = breaks_reference.rows(
    row("BackgroundForShow",
        "Has the methods of states in the background, which it does not claim; `begin_state` writes at once.",
        "train.refuse.background", claims={"checkpoint.background": not_yet("states are written at once")},
        begin_state=lambda self, path: self.save_state(path)),
)  # fmt: skip


class Spilling(SecondTrainEngine):
    """Moves another part of the table away than all of it."""

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super().build(spec, ranks, device, dtype)
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
    out = self.opened().spill.out
    original()
    if out:
        _empty({n: t for n, t in self.running().table.items() if n.startswith("second/")})


@breaks("onload", "train.offload.ranks", ranks=2)
def OtherRanksForget(original: Original, self: SecondTrainEngine) -> None:
    """Brings everything back on rank 0; on the other ranks the moments begin at zero again."""
    here = self.opened()
    out = here.spill.out
    original()
    if out and here.ranks.rank > 0:
        _empty(here.adam.moments if here.adam is not None else {})


@breaks("onload", "train.offload.exact", "train.offload.state", first=None,
    offload=before(lambda self: None if self.opened().spill.out
        else setattr(self, "first", self.first or copied(self.opened().table))))  # fmt: skip
def OnloadsTheFirstCopy(original: Original, self: Any) -> None:
    """Writes the weights out once, and brings that copy back ever after."""
    out = self.opened().spill.out
    original()
    if out and self.first is not None:
        with torch.no_grad():
            for name, tensor in self.running().table.items():
                tensor.copy_(self.first[name])


@breaks("onload", "train.offload.exact", calls=0,
    offload=before(lambda self: setattr(self, "calls", self.calls + 1)))  # fmt: skip
def SecondOffloadLosesAll(original: Original, self: Any) -> None:
    """Offloads what is already gone: a second `offload` overwrites the copy with nothing."""
    original()
    if self.calls > 1:
        _empty(dict(self.running().table))
    self.calls = 0


@mutant(ENGINE, killers=("train.offload.use",), row="sleep-is-real")
class ComputesWithNothing(SecondTrainEngine):
    """Answers calls while offloaded, with weights of zero."""

    _kept: dict[str, Tensor] | None = None

    def offload(self) -> None:
        if self._kept is None:
            table = self.opened().table
            self._kept = {name: tensor.detach().clone() for name, tensor in table.items()}
            _empty(dict(table))

    def onload(self) -> None:
        kept, self._kept = self._kept, None
        with torch.no_grad():
            for name, tensor in self.opened().table.items():
                if kept is not None:
                    tensor.copy_(kept[name])


OPTIONAL_OFFLOAD_ROWS = breaks.rows(
    row("OffloadIsAFlag", "Remembers that it was offloaded, and frees nothing.", "train.offload.frees",
        "train.offload.frozen", incident="vLLM#45585", row="sleep-is-real", offload=lambda self: self.opened(),
        onload=lambda self: self.opened()),
    row("OptimizerStays", "Moves the weights away; both moments of the optimizer stay on the device.",
        "train.offload.frees", row="sleep-is-real", base=Spilling, moves=lambda name: name.startswith("weights/")),
    row("WeightsStay", "Moves the optimizer away; the weights stay on the device.", "train.offload.frees",
        "train.offload.frozen", row="sleep-is-real", base=Spilling, moves=lambda name: not name.startswith("weights/")),
    row("VersionLostOnloadOffDevice", "Comes back as version 0.", "train.offload.exact",
        onload=then(lambda self: setattr(self, "version", 0))),
    row("CloseNeedsTheDevice", "Cannot be closed while it is offloaded.", "train.offload.close",
        close=before(lambda self: self.weights_in_use() if self.started is not None else None)),
)  # fmt: skip


def _empty(tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
