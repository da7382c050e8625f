"""Trainers of several ranks that send, save or load the wrong thing, or cannot read a state on one rank in silence.

Knows: what the second trainer exports, its table of an exact state, and what its ranks read.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSink
from areal_core.plugins.claims import not_yet, unsupported
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, breaking, catches, row, then
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine, Started, facts_of
from areal_proof.second.train.ranks import Ranks

breaks = breaking("train/second", SecondTrainEngine, ranks=2)
breaks_sharing = breaking("train/second", Sharing, ranks=2)


@breaks_sharing("exported", "train.ranks.send.whole", row="one-destination")
def SendsOwnPart(original: Original, here: Started) -> Any:
    """Rank 0 sends its own rows of the last matrix, not those of the others."""
    tensors = original()
    name = next(name for name in reversed(tensors) if tensors[name].ndim > 1)
    return {**tensors, name: tensors[name][: -(-len(tensors[name]) // here.ranks.size)]}


@breaks_sharing("exported", "train.ranks.send.whole")
def OtherPartsAreStale(original: Original, here: Started) -> Any:
    """Sends the rows of the other ranks as they were initialised, until the first step: zeros."""
    tensors = original()
    if here.ranks.size == 1 or here.adam is None or here.adam.steps:
        return tensors
    half = {n: len(t) // 2 for n, t in tensors.items()}
    return {n: torch.cat([t[: half[n]], torch.zeros_like(t[half[n] :])]) for n, t in tensors.items()}


@breaks_sharing("send_weights", "train.ranks.send.fresh", incident="verl#7495", row="served-policy-changes")
def SendsLastGather(original: Original, self: Any) -> Any:
    """Sends what was gathered for the send before."""
    held = getattr(self, "_held", None)
    now = {name: tensor.detach().clone() for name, tensor in self.running().weights.items()}
    if held is None or not self.several:
        self._held = now
        return original()
    with torch.no_grad():
        for name, tensor in self.running().weights.items():
            tensor.copy_(held[name])
        receipt = original()
        for name, tensor in self.running().weights.items():
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


@breaks_sharing("save_weights", "train.ranks.save_weights")
def SavesFirstGather(original: Original, self: Any) -> None:
    """Saves the weights gathered for the first save, whatever was trained since."""
    here = self.running()
    now = {name: tensor.detach().clone() for name, tensor in here.weights.items()}
    if not hasattr(self, "_held"):
        self._held = now
    with torch.no_grad():
        for name, tensor in here.weights.items():
            tensor.copy_(self._held[name])
        original()
        for name, tensor in here.weights.items():
            tensor.copy_(now[name])


@breaks_sharing("load_state", "train.ranks.state.exact")
def LosesOtherMoments(original: Original, self: Sharing) -> None:
    """Brings back the moments rank 0 wrote, and begins those of the others at zero."""
    original()
    if self.several:
        moments = [t for name, t in self.running().table.items() if name.startswith(("first/", "second/"))]
        for tensor in moments[1::2]:
            tensor.zero_()


@breaks_sharing("load_state", "train.ranks.state.exact")
def VersionOnRankZero(original: Original, self: Sharing) -> None:
    """Only rank 0 learns the version of a loaded state."""
    before = self.version
    original()
    if self.running().ranks.rank:
        self.version = before


def _ranks_of(path: Path) -> int:
    return int(json.loads((path / "index.json").read_text())["ranks"])


@breaks("load_state", "train.ranks.state.fewer", "train.ranks.state.more")
def ReshardLosesMoments(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Brings back weights from another number of ranks, and begins the moments at zero."""
    original()
    here = self.running()
    if _ranks_of(path) != here.ranks.size:
        for name, tensor in here.table.items():
            if name.startswith(("first/", "second/")):
                tensor.zero_()


@breaks("load_state", "train.ranks.state.fewer", "train.ranks.state.more")
def ReshardLosesSchedule(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Begins the schedule anew where another number of ranks saved the state."""
    original()
    here = self.running()
    if here.adam is not None and _ranks_of(path) != here.ranks.size:
        here.adam.steps = 0


@mutant("train/second", killers=("train.ranks.state.relayout",), ranks=2)
class MixesLayouts(SecondTrainEngine):
    """Takes every second tensor of a state for the other layout's, and leaves it as it was."""

    def save_state(self, path: Path) -> None:
        super().save_state(path)
        here = self.running()
        if here.ranks.rank == 0:
            (path / f"tensor-{here.ranks.tensor_size}").touch()
        here.ranks.agree(lambda: None)

    def load_state(self, path: Path) -> None:
        here = self.running()
        before = {name: tensor.detach().clone() for name, tensor in here.table.items()}
        super().load_state(path)
        if here.ranks.size > 1 and not (path / f"tensor-{here.ranks.tensor_size}").exists():
            with torch.no_grad():
                for name in list(here.table)[1::2]:
                    here.table[name].copy_(before[name])


@breaks("load_state", "train.ranks.refuse.reshard",
        claims={"checkpoint.reshard": not_yet("ranks write their own parts")})  # fmt: skip
def LoadsWhatItCannot(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Does not claim to load a state of another number of ranks, and loads the weights of one, without the moments."""
    original()
    here = self.running()
    if _ranks_of(path) != here.ranks.size:
        for name, tensor in here.table.items():
            if name.startswith(("first/", "second/")):
                tensor.zero_()


@breaks("load_state", "train.ranks.state.missing")
def OverwritesBeforeAgreeing(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Each rank overwrites its weights as soon as it has read them, and hears of the others' failure later."""
    here = self.running()
    here.ranks.agree(lambda: checkpoint.load(path, Ranks(), here.table, facts_of(here)))
    original()


@breaks("load_state", "train.ranks.state.torn")
def TornIsGoodEnough(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Takes the version of a state that cannot be read whole, and keeps the weights it has."""
    try:
        original()
    except CheckpointError:
        if not (path / "index.json").exists():
            raise
        self.version = int(json.loads((path / "index.json").read_text())["progress"]["version"])


@breaks("save_state", "train.ranks.fault.disk_state", "train.ranks.fault.killed_saving", incident="OpenRLHF#1322")
def SavesStateInPlace(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Removes the state before, and writes the new one where it was."""
    here = self.running()
    here.ranks.agree(lambda: shutil.rmtree(path, ignore_errors=True) if here.ranks.rank == 0 else None)
    original()


@breaks("save_weights", "train.ranks.fault.disk_weights")
def SavesWeightsInPlace(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Removes the folder before, and writes the new one where it was."""
    here = self.running()
    here.ranks.agree(lambda: shutil.rmtree(path, ignore_errors=True) if here.ranks.rank == 0 else None)
    original()


SHARING_ROWS = breaks_sharing.rows(
    row("ReceiptForAll", "Every rank returns a receipt, though only rank 0 has seen the sink.",
        "train.ranks.send.receipt",
        send_weights=after(lambda result, version: result or Receipt(version=version, num_bytes=0, seconds=0.0,
            fingerprints={}))),
    row("RandomOfRankZero", "Gives every rank the random state of rank 0.", "train.ranks.state.random",
        load_state=then(lambda self, path: torch.set_rng_state(load_file(path / "random-0.safetensors")["cpu"])
            if self.several else None)),
    row("FullDiskOfOthers", "Rank 0 takes a part another rank could not write for written.",
        "train.ranks.fault.disk_state",
        save_state=catches(StorageError, lambda error: error if not error.what.startswith("on rank") else None)),
)  # fmt: skip


ROWS = breaks.rows(
    row("GathersAllAtOnce", "Gathers the whole model on rank 0 and sends it as one bucket.",
        "train.ranks.send.buckets",
        send_weights=lambda original, sink, version: original(_Greedy(sink) if sink is not None else None, version)),
    row("NeverAborts", "Leaves a sink that failed as it is.", "train.ranks.send.failing_sink",
        send_weights=lambda original, sink, version: original(_NeverAborted(sink) if sink is not None else None,
            version)),
    row("LeavesPartialFolder", "Leaves the folder it wrote into beside the one it made.", "train.ranks.save_weights",
        save_weights=then(lambda self, path: path.with_name(path.name + ".building").mkdir()
            if self.running().ranks.rank == 0 else None)),
    row("TrainsAlone", "Claims one rank only, takes any layout, and trains on each rank as if there were no other.",
        "train.ranks.refuse.data",
        claims={"parallel.data": unsupported("one rank only"), "parallel.tensor": unsupported("one rank only")},
        start=lambda original, spec, rank: original(attrs.evolve(spec, layout={"d": 1}),
            attrs.evolve(rank, rank=0, world_size=1))),
    row("GuessesTheLayout", "Takes a layout that is not for as many ranks as there are for one of data ranks.",
        "train.ranks.layout_error",
        start=lambda original, spec, rank: original(spec if math.prod([spec.layout.get(letter, 1)
            for letter in "dtpc"]) == rank.world_size or not spec.layout
            else attrs.evolve(spec, layout={"d": rank.world_size}), rank)),
)  # fmt: skip


_KILLERS = ("train.ranks.state.each_file",)


@breaks_sharing("load_state", *_KILLERS)
def ReadsOwnFileAlone(original: Original, self: Sharing, path: Path) -> None:
    """Raises alone on the rank whose own part is torn, before the ranks agree; the others wait for it."""
    own = path / f"part-{self.running().ranks.rank}.safetensors"
    if self.several and own.exists():
        try:
            with safe_open(own, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{own} is torn", why=str(error), fix="load another state") from error
    original()


@breaks_sharing("load_state", *_KILLERS)
def RaisesParserErrors(original: Original, self: Sharing, path: Path) -> None:
    """Raises something of its own, and on one rank only, where a proof cannot be read as json."""
    proof = path / f"proof-{self.running().ranks.rank}.json"
    if self.several and proof.exists():
        json.loads(proof.read_bytes())
    original()


@breaks_sharing("load_state", *_KILLERS)
def RefusedVersionKept(original: Original, self: Sharing, path: Path) -> None:
    """Takes the version of a state whose parts then turn out to be torn."""
    try:
        original()
    except CheckpointError:
        index = path / "index.json"
        if self.several and index.exists() and index.read_bytes()[:1] == b"{":
            text = index.read_text()
            self.version = int(text.partition('"version": ')[2].partition(",")[0] or self.version)
        raise
