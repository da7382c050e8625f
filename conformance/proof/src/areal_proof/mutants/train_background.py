"""Trainers that write another state than the one begun, show it too early, or do not tell that it failed.

Knows: the pending state of the second trainer.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from areal_core.contract.errors import StorageError, TrainError
from areal_core.plugins.claims import not_yet
from areal_proof.mutants import mutant
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine
from areal_proof.second.train.pending import Pending
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/second"


@mutant(ENGINE, killers=("train.background.exact", "train.background.company", "train.background.unseen"))
class WritesWhatItHoldsLater(SecondTrainEngine):
    """Takes no copy: what is written is whatever the weights are by then."""

    _path: Path | None = None

    def begin_state(self, path: Path) -> None:
        """Remember the path."""
        if self._path is not None:
            raise TrainError("a second state", why="one at a time")
        self._path = Path(path)

    def finish_state(self) -> None:
        """Write now."""
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
                json.dumps({file: checkpoint._digest(path / file) for file in json.loads(proof.read_text())})
            )

    def rewrite(self, folder: Path) -> None:
        """Change something."""


@mutant(ENGINE, killers=("train.background.exact",))
class VersionOfTheEnd(Rewriting):
    """Writes the weights of the beginning under the version it has at the end."""

    def rewrite(self, folder: Path) -> None:
        """Put the version in."""
        index = json.loads((folder / "index.json").read_text())
        index["progress"]["version"] = self.version
        (folder / "index.json").write_text(json.dumps(index))


@mutant(ENGINE, killers=("train.background.exact",))
class MomentsNotCopied(Rewriting):
    """Copies the weights out of the way, and shares the moments with the steps that follow."""

    def rewrite(self, folder: Path) -> None:
        """Put the moments of now in."""
        adam, file = self._running().adam, folder / "part-0.safetensors"
        if adam is not None:
            save_file({**load_file(file), **{name: tensor.clone() for name, tensor in adam.moments.items()}}, file)


@mutant(ENGINE, killers=("train.background.exact",))
class RandomStateOfTheEnd(Rewriting):
    """Writes the random state it has at the end."""

    def rewrite(self, folder: Path) -> None:
        """Put the random state of now in."""
        save_file({"cpu": torch.get_rng_state()}, folder / "random-0.safetensors")


@mutant(ENGINE, killers=("train.background.unseen",))
class ShownAtOnce(SecondTrainEngine):
    """Is done when it begins: the state is at its path before anybody has finished it."""

    def begin_state(self, path: Path) -> None:
        """Finish at once."""
        super().begin_state(path)
        super().finish_state()


@mutant(ENGINE, killers=("train.background.unseen",))
class NeverWritten(SecondTrainEngine):
    """Says of a state that it is not written until somebody has waited for it."""

    def state_written(self) -> bool:
        """Look whether one is pending."""
        return self._pending is None


@mutant(ENGINE, killers=("train.background.order",))
class TheSecondWins(SecondTrainEngine):
    """Drops a state that was begun, silently, when another is."""

    def begin_state(self, path: Path) -> None:
        """Drop the first."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.drop()
        super().begin_state(path)


@mutant(ENGINE, killers=("train.background.order",))
class FinishNeedsABeginning(SecondTrainEngine):
    """Cannot finish where nothing was begun."""

    def finish_state(self) -> None:
        """Raise if nothing is pending."""
        if self._pending is None:
            raise TrainError("no state was begun", why="finish_state was called alone")
        super().finish_state()


@mutant(ENGINE, killers=("train.background.no_effect",))
class CopyingDraws(SecondTrainEngine):
    """Draws a random number for every state it begins."""

    def begin_state(self, path: Path) -> None:
        """Draw."""
        super().begin_state(path)
        torch.rand(1)


@mutant(ENGINE, killers=("train.background.frozen",))
class OnlyTrainedStates(SecondTrainEngine):
    """Begins no state of a role without an optimizer."""

    def begin_state(self, path: Path) -> None:
        """Look for the optimizer."""
        if self._running().adam is None:
            raise TrainError("nothing to write", why="the role is frozen")
        super().begin_state(path)


@mutant(ENGINE, killers=("train.background.full", "train.background.in_the_way"))
class FailuresForgotten(SecondTrainEngine):
    """Tells nobody that a state could not be written."""

    def begin_state(self, path: Path) -> None:
        """Begin, or do not."""
        try:
            super().begin_state(path)
        except StorageError:
            self._pending = None

    def finish_state(self) -> None:
        """Finish, or do not."""
        try:
            super().finish_state()
        except StorageError:
            return


class _Littering(Pending):
    def clean(self) -> None:
        """Leave it."""


class Pendings(SecondTrainEngine):
    """Writes its states by another class."""

    pending_class: type[Pending] = Pending

    def begin_state(self, path: Path) -> None:
        """Begin as ever, then as this class does."""
        super().begin_state(path)
        if self._pending is not None:
            self._pending.__class__ = self.pending_class


@mutant(ENGINE, killers=("train.background.full",))
class FailuresLitter(Pendings):
    """Leaves beside the path what it could write of a state that failed."""

    pending_class = _Littering


@mutant(ENGINE, killers=("train.background.full",))
class StateBeforeGoesFirst(SecondTrainEngine):
    """Makes room by removing the state that is at the path, before the new one is complete."""

    def begin_state(self, path: Path) -> None:
        """Remove it."""
        super().begin_state(path)
        shutil.rmtree(path, ignore_errors=True)


@mutant(ENGINE, killers=("train.background.full",))
class FailureStays(SecondTrainEngine):
    """Tells of a failed state at every `finish_state` after it."""

    _error: StorageError | None = None

    def finish_state(self) -> None:
        """Remember the error."""
        if self._error is not None:
            raise self._error
        try:
            super().finish_state()
        except StorageError as error:
            self._error = error
            raise


class _Leaving(Pending):
    def drop(self) -> None:
        """Leave what is written."""


@mutant(ENGINE, killers=("train.background.close",))
class CloseLeavesTheRest(Pendings):
    """Closes with a state half written, and leaves it beside the path."""

    pending_class = _Leaving


@mutant(ENGINE, killers=("train.background.close",))
class CloseFinishesIt(SecondTrainEngine):
    """Finishes a state nobody finished when it is closed."""

    def close(self) -> None:
        """Finish first."""
        if self._started is not None:
            self.finish_state()
        super().close()


class _AloneAtEnd(Pending):
    def finish(self) -> None:
        """Let rank 0 name the folder without asking whether the others could write."""
        if self._ranks.rank == 0:
            self._job.result()
            checkpoint.name(self._building, self._path, self._ranks)
        self._ranks.agree(lambda: None)


@mutant(ENGINE, killers=("train.background.ranks_full",), ranks=2)
class RankZeroDecides(Pendings):
    """Names the folder when rank 0 has written its part."""

    pending_class = _AloneAtEnd


@mutant(ENGINE, killers=("train.background.ranks",), ranks=2)
class OtherRanksWriteLater(SecondTrainEngine):
    """Copies the state on rank 0 only; the other ranks write what they hold when it is finished."""

    def finish_state(self) -> None:
        """Write again, with what is held now."""
        here, pending = self._running(), self._pending
        if here.ranks.rank > 0 and pending is not None:
            pending._job.result()
            checkpoint.writer(here.ranks, here.table, {}, {})(pending._building)
        super().finish_state()


@mutant(
    "train/reference",
    killers=("train.refuse.background",),
    claims={"checkpoint.background": not_yet("states are written at once")},
)
class BackgroundForShow(ReferenceTrainEngine):
    """Has the methods of states in the background, which it does not claim; `begin_state` writes at once."""

    def begin_state(self, path: Path) -> None:
        """Write."""
        self.save_state(path)
