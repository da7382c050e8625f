"""Trainers of several ranks that send, save or load the wrong thing.

Knows: what the second trainer exports, and its table of an exact state.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.contract.weights import Receipt, WeightManifest, WeightSink
from areal_core.plugins.claims import not_yet, unsupported
from areal_proof.mutants import mutant
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.engine import _identity as facts_of
from areal_proof.second.train.ranks import Ranks


@mutant("train/second", killers=("train.ranks.send.receipt",), ranks=2)
class ReceiptForAll(Sharing):
    """Every rank returns a receipt, though only rank 0 has seen the sink."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Return one."""
        receipt = super().send_weights(sink, version)
        return receipt or Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})


@mutant("train/second", killers=("train.ranks.send.whole",), row="one-destination", ranks=2)
class SendsOwnPart(Sharing):
    """Rank 0 sends its own rows of the last matrix, not those of the others."""

    def _exported(self, here: Started) -> dict[str, Tensor]:
        tensors = super()._exported(here)
        name = next(name for name in reversed(tensors) if tensors[name].ndim > 1)
        return {**tensors, name: tensors[name][: -(-len(tensors[name]) // here.ranks.size)]}


@mutant("train/second", killers=("train.ranks.send.whole",), ranks=2)
class OtherPartsAreStale(Sharing):
    """Sends the rows of the other ranks as they were initialised, until the first step: zeros."""

    def _exported(self, here: Started) -> dict[str, Tensor]:
        tensors = super()._exported(here)
        if here.ranks.size == 1 or here.adam is None or here.adam.steps:
            return tensors
        half = {n: len(t) // 2 for n, t in tensors.items()}
        return {n: torch.cat([t[: half[n]], torch.zeros_like(t[half[n] :])]) for n, t in tensors.items()}


@mutant("train/second", killers=("train.ranks.send.fresh",), incident="verl#7495", row="served-policy-changes", ranks=2)
class SendsLastGather(Sharing):
    """Sends what was gathered for the send before."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Keep what is sent for the next time."""
        held = getattr(self, "_held", None)
        now = {name: tensor.detach().clone() for name, tensor in self._running().weights.items()}
        if held is None or not self.several:
            self._held = now
            return super().send_weights(sink, version)
        with torch.no_grad():
            for name, tensor in self._running().weights.items():
                tensor.copy_(held[name])
            receipt = super().send_weights(sink, version)
            for name, tensor in self._running().weights.items():
                tensor.copy_(now[name])
        self._held = now
        return receipt


class _Greedy:
    """A sink that asks for everything at once."""

    def __init__(self, sink: WeightSink) -> None:
        self._sink = sink
        self.bucket_bytes = 1 << 40

    def begin(self, manifest: WeightManifest) -> None:
        self._sink.begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        self._sink.write(bucket)

    def finish(self) -> Receipt:
        return self._sink.finish()

    def abort(self) -> None:
        self._sink.abort()


class _NeverAborted(_Greedy):
    def __init__(self, sink: WeightSink) -> None:
        super().__init__(sink)
        self.bucket_bytes = sink.bucket_bytes

    def abort(self) -> None:
        pass


@mutant("train/second", killers=("train.ranks.send.buckets",), ranks=2)
class GathersAllAtOnce(SecondTrainEngine):
    """Gathers the whole model on rank 0 and sends it as one bucket."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Ask for one bucket."""
        return super().send_weights(_Greedy(sink) if sink is not None else None, version)


@mutant("train/second", killers=("train.ranks.send.failing_sink",), ranks=2)
class NeverAborts(SecondTrainEngine):
    """Leaves a sink that failed as it is."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Do not abort."""
        return super().send_weights(_NeverAborted(sink) if sink is not None else None, version)


@mutant("train/second", killers=("train.ranks.save_weights",), ranks=2)
class SavesFirstGather(Sharing):
    """Saves the weights gathered for the first save, whatever was trained since."""

    def save_weights(self, path: Path) -> None:
        """Save old weights."""
        here = self._running()
        now = {name: tensor.detach().clone() for name, tensor in here.weights.items()}
        if not hasattr(self, "_held"):
            self._held = now
        with torch.no_grad():
            for name, tensor in here.weights.items():
                tensor.copy_(self._held[name])
            super().save_weights(path)
            for name, tensor in here.weights.items():
                tensor.copy_(now[name])


@mutant("train/second", killers=("train.ranks.save_weights",), ranks=2)
class LeavesPartialFolder(SecondTrainEngine):
    """Leaves the folder it wrote into beside the one it made."""

    def save_weights(self, path: Path) -> None:
        """Leave a folder."""
        super().save_weights(path)
        if self._running().ranks.rank == 0:
            path.with_name(path.name + ".building").mkdir()


@mutant("train/second", killers=("train.ranks.state.exact",), ranks=2)
class LosesOtherMoments(Sharing):
    """Brings back the moments rank 0 wrote, and begins those of the others at zero."""

    def load_state(self, path: Path) -> None:
        """Zero every second moment tensor."""
        super().load_state(path)
        if self.several:
            moments = [t for name, t in self._running().table.items() if name.startswith(("first/", "second/"))]
            for tensor in moments[1::2]:
                tensor.zero_()


@mutant("train/second", killers=("train.ranks.state.exact",), ranks=2)
class VersionOnRankZero(Sharing):
    """Only rank 0 learns the version of a loaded state."""

    def load_state(self, path: Path) -> None:
        """Keep the version elsewhere."""
        before = self.version
        super().load_state(path)
        if self._running().ranks.rank:
            self.version = before


@mutant("train/second", killers=("train.ranks.state.random",), ranks=2)
class RandomOfRankZero(Sharing):
    """Gives every rank the random state of rank 0."""

    def load_state(self, path: Path) -> None:
        """Take another rank's generators."""
        super().load_state(path)
        if self.several:
            torch.set_rng_state(load_file(path / "random-0.safetensors")["cpu"])


def _ranks_of(path: Path) -> int:
    return int(json.loads((path / "index.json").read_text())["ranks"])


@mutant("train/second", killers=("train.ranks.state.fewer", "train.ranks.state.more"), ranks=2)
class ReshardLosesMoments(SecondTrainEngine):
    """Brings back weights from another number of ranks, and begins the moments at zero."""

    def load_state(self, path: Path) -> None:
        """Zero the moments."""
        super().load_state(path)
        here = self._running()
        if _ranks_of(path) != here.ranks.size:
            for name, tensor in here.table.items():
                if name.startswith(("first/", "second/")):
                    tensor.zero_()


@mutant("train/second", killers=("train.ranks.state.fewer", "train.ranks.state.more"), ranks=2)
class ReshardLosesSchedule(SecondTrainEngine):
    """Begins the schedule anew where another number of ranks saved the state."""

    def load_state(self, path: Path) -> None:
        """Count from zero."""
        super().load_state(path)
        here = self._running()
        if here.adam is not None and _ranks_of(path) != here.ranks.size:
            here.adam.steps = 0


@mutant("train/second", killers=("train.ranks.state.relayout",), ranks=2)
class MixesLayouts(SecondTrainEngine):
    """Takes every second tensor of a state for the other layout's, and leaves it as it was."""

    def save_state(self, path: Path) -> None:
        """Note the layout."""
        super().save_state(path)
        here = self._running()
        if here.ranks.rank == 0:
            (path / f"tensor-{here.ranks.tensor_size}").touch()
        here.ranks.agree(lambda: None)

    def load_state(self, path: Path) -> None:
        """Keep some of what was there."""
        here = self._running()
        before = {name: tensor.detach().clone() for name, tensor in here.table.items()}
        super().load_state(path)
        if here.ranks.size > 1 and not (path / f"tensor-{here.ranks.tensor_size}").exists():
            with torch.no_grad():
                for name in list(here.table)[1::2]:
                    here.table[name].copy_(before[name])


@mutant(
    "train/second",
    killers=("train.ranks.refuse.reshard",),
    claims={"checkpoint.reshard": not_yet("ranks write their own parts")},
    ranks=2,
)
class LoadsWhatItCannot(SecondTrainEngine):
    """Does not claim to load a state of another number of ranks, and loads the weights of one, without the moments."""

    def load_state(self, path: Path) -> None:
        """Load a part."""
        super().load_state(path)
        here = self._running()
        if _ranks_of(path) != here.ranks.size:
            for name, tensor in here.table.items():
                if name.startswith(("first/", "second/")):
                    tensor.zero_()


@mutant("train/second", killers=("train.ranks.state.missing",), ranks=2)
class OverwritesBeforeAgreeing(SecondTrainEngine):
    """Each rank overwrites its weights as soon as it has read them, and hears of the others' failure later."""

    def load_state(self, path: Path) -> None:
        """Overwrite, then agree."""
        here = self._running()
        here.ranks.agree(lambda: checkpoint.load(path, Ranks(), here.table, facts_of(here)))
        super().load_state(path)


@mutant("train/second", killers=("train.ranks.state.torn",), ranks=2)
class TornIsGoodEnough(SecondTrainEngine):
    """Takes the version of a state that cannot be read whole, and keeps the weights it has."""

    def load_state(self, path: Path) -> None:
        """Swallow the error."""
        try:
            super().load_state(path)
        except CheckpointError:
            if not (path / "index.json").exists():
                raise
            self.version = int(json.loads((path / "index.json").read_text())["progress"]["version"])


@mutant(
    "train/second",
    killers=("train.ranks.fault.disk_state", "train.ranks.fault.killed_saving"),
    incident="OpenRLHF#1322",
    ranks=2,
)
class SavesStateInPlace(SecondTrainEngine):
    """Removes the state before, and writes the new one where it was."""

    def save_state(self, path: Path) -> None:
        """Remove first."""
        here = self._running()
        here.ranks.agree(lambda: shutil.rmtree(path, ignore_errors=True) if here.ranks.rank == 0 else None)
        super().save_state(path)


@mutant("train/second", killers=("train.ranks.fault.disk_weights",), ranks=2)
class SavesWeightsInPlace(SecondTrainEngine):
    """Removes the folder before, and writes the new one where it was."""

    def save_weights(self, path: Path) -> None:
        """Remove first."""
        here = self._running()
        here.ranks.agree(lambda: shutil.rmtree(path, ignore_errors=True) if here.ranks.rank == 0 else None)
        super().save_weights(path)


@mutant("train/second", killers=("train.ranks.fault.disk_state",), ranks=2)
class FullDiskOfOthers(Sharing):
    """Rank 0 takes a part another rank could not write for written."""

    def save_state(self, path: Path) -> None:
        """Swallow what another rank raised."""
        try:
            super().save_state(path)
        except StorageError as error:
            if not error.what.startswith("on rank"):
                raise


@mutant(
    "train/second",
    killers=("train.ranks.refuse.data",),
    claims={"parallel.data": unsupported("one rank only"), "parallel.tensor": unsupported("one rank only")},
    ranks=2,
)
class TrainsAlone(SecondTrainEngine):
    """Claims one rank only, takes any layout, and trains on each rank as if there were no other."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start alone."""
        lone = attrs.evolve(rank, rank=0, world_size=1)
        return super().start(attrs.evolve(spec, layout={"d": 1}), lone)


@mutant("train/second", killers=("train.ranks.layout_error",), ranks=2)
class GuessesTheLayout(SecondTrainEngine):
    """Takes a layout that is not for as many ranks as there are for one of data ranks."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Guess."""
        degrees = [spec.layout.get(letter, 1) for letter in "dtpc"]
        fits = math.prod(degrees) == rank.world_size or not spec.layout
        return super().start(spec if fits else attrs.evolve(spec, layout={"d": rank.world_size}), rank)
