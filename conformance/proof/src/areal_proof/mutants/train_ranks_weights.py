"""Trainers of several ranks that send, save or load the wrong thing, or cannot read a state on one rank in silence.

Knows: what the second trainer exports, its table of an exact state, and what its ranks read.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.contract.weights import Receipt
from areal_core.plugins.claims import not_yet, unsupported
from areal_proof.mutants.rows import Original, after, before, breaking, catches, put, row, subclass, then, within
from areal_proof.mutants.train_parts import copied, filled
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.mutants.weight_parts import PassingSink
from areal_proof.second.train import checkpoint
from areal_proof.second.train import engine as engine_module
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
    weights, known = self.running().weights, vars(self)
    held, known["held"] = known.get("held"), copied(weights)
    if held is None or not self.several:
        return original()
    with filled(weights, held):
        return original()


_Greedy = subclass("Greedy", PassingSink, {"bucket_bytes": 1 << 40})
_NeverAborted = subclass("NeverAborted", PassingSink, {"abort": lambda: None})


@breaks_sharing("save_weights", "train.ranks.save_weights")
def SavesFirstGather(original: Original, self: Any) -> None:
    """Saves the weights gathered for the first save, whatever was trained since."""
    weights = self.running().weights
    with filled(weights, vars(self).setdefault("held", copied(weights))):
        original()


@breaks_sharing("load_state", "train.ranks.state.exact")
def LosesOtherMoments(original: Original, self: Sharing) -> None:
    """Brings back the moments rank 0 wrote, and begins those of the others at zero."""
    original()
    if self.several:
        moments = [t for name, t in self.running().table.items() if name.startswith(("first/", "second/"))]
        for tensor in moments[1::2]:
            tensor.zero_()


@breaks_sharing("load_state", "train.ranks.state.exact",
    forward=before(lambda self: setattr(self, "gathered", copied(self.running().weights))),
    train_step=before(lambda self: setattr(self, "gathered", {})),
)  # fmt: skip
def StaleAfterScores(original: Original, self: Sharing) -> None:
    """Keeps what it gathered to score, and computes with it after a state is loaded."""
    original()
    for name, tensor in vars(self).get("gathered", {}).items():
        self.running().weights[name].data.copy_(tensor)


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
def ReshardLosesSchedule(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Begins the schedule anew where another number of ranks saved the state."""
    original()
    here = self.running()
    if here.adam is not None and _ranks_of(path) != here.ranks.size:
        here.adam.steps = 0


@breaks("load_state", "train.ranks.state.relayout", save_state=then(lambda self, path: _sign(self.running(), path)))
def MixesLayouts(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Takes every second tensor of a state for the other layout's, and leaves it as it was."""
    here = self.running()
    before = copied(here.table)
    original()
    if here.ranks.size > 1 and not (path / f"tensor-{here.ranks.tensor_size}").exists():
        with torch.no_grad():
            for name in list(here.table)[1::2]:
                here.table[name].copy_(before[name])


def _sign(here: Started, path: Path) -> None:
    """Leave the layout a state was saved in."""
    if here.ranks.rank == 0:
        (path / f"tensor-{here.ranks.tensor_size}").touch()
    here.ranks.agree(lambda: None)


def _forget_moments(here: Started, path: Path) -> None:
    """Begin the moments at zero, if the state is of another number of ranks."""
    if _ranks_of(path) != here.ranks.size:
        for name, tensor in here.table.items():
            if name.startswith(("first/", "second/")):
                tensor.zero_()


def _make_room(here: Started, path: Path) -> None:
    here.ranks.agree(lambda: shutil.rmtree(path, ignore_errors=True) if here.ranks.rank == 0 else None)


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
    row("LeavesTheRestOut", "Gives each of several ranks as many heads as the others, and the rest to none.",
        "train.ranks.unfit",
        start=within(lambda: put(engine_module, _check_shares=lambda architecture, tensor_size: None))),
    row("ReshardLosesMoments", "Brings back weights from another number of ranks, and begins the moments at zero.",
        "train.ranks.state.fewer", "train.ranks.state.more",
        load_state=then(lambda self, path: _forget_moments(self.running(), path))),
    row("LoadsWhatItCannot",
        "Does not claim to load a state of another number of ranks, and loads the weights of one, without the moments.",
        "train.ranks.refuse.reshard", claims={"checkpoint.reshard": not_yet("ranks write their own parts")},
        load_state=then(lambda self, path: _forget_moments(self.running(), path))),
    row("SavesStateInPlace", "Removes the state before, and writes the new one where it was.",
        "train.ranks.fault.disk_state", "train.ranks.fault.killed_saving", incident="OpenRLHF#1322",
        save_state=before(lambda self, path: _make_room(self.running(), path))),
    row("SavesWeightsInPlace", "Removes the folder before, and writes the new one where it was.",
        "train.ranks.fault.disk_weights", save_weights=before(lambda self, path: _make_room(self.running(), path))),
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
