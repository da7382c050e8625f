"""Trainers that save something else than the weights they hold, or take what they do not claim.

Knows: what each saves instead, and what the reference trainers refuse.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import torch

from areal_core.contract.errors import StorageError
from areal_core.plugins.claims import not_yet
from areal_proof.mutants.rows import Original, before, breaking, catches, given, row, then
from areal_proof.mutants.train_parts import exporter_of, without_routes
from areal_proof.second.train.engine import SecondTrainEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.refusals import refuse_routes

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_second = breaking("train/second", SecondTrainEngine)
_ROOM = 1 << 20
"""Bytes that a file must be allowed to have."""


@breaks("save_weights", "train.save.complete")
def TokenizerNotSaved(original: Original, path: Path) -> None:
    """Saves weights and config only."""
    original()
    for file in path.glob("tokenizer*"):
        file.unlink()


@breaks("save_weights", "train.save.replaces")
def FoldersMerged(original: Original, path: Path) -> None:
    """Writes into a folder that is there and leaves its other files."""
    fresh = path.with_name(f"{path.name}.fresh")
    original(fresh)
    shutil.copytree(fresh, path, dirs_exist_ok=True)
    shutil.rmtree(fresh)


ROWS = breaks.rows(
    row("SavesFirstWeights", "Saves the folder it was started from.", "train.save.loads", "train.save.starts",
        row="served-policy-changes", start=before(lambda self, spec: setattr(self, "_source", spec.model_path)),
        save_weights=lambda self, path: shutil.copytree(self._source, path, dirs_exist_ok=True)),
    row("PickleSavedToo", "Saves a pickle of the weights besides.", "train.save.complete",
        save_weights=then(lambda path: torch.save({"step": 1}, path / "extra_state.pt"))),
    row("SavingDraws", "Draws a random name for every folder.", "train.save.no_effect",
        save_weights=before(lambda: torch.randint(1 << 30, ()))),
    row("BareDiskErrors", "Lets the operating system say that a disk is full.", "train.disk.weights_in_the_way",
        "train.disk.weights_full", save_weights=catches(StorageError, lambda error: OSError(str(error)))),
)  # fmt: skip


@breaks("save_weights", "train.save.dtype")
def ConfigKeepsDtype(original: Original, path: Path) -> None:
    """Leaves the dtype in config.json as it was in the model it started from."""
    original()
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}))


@breaks("save_weights", "train.save.dtype")
def ConfigKeepsOldName(original: Original, self: ReferenceTrainEngine, path: Path) -> None:
    """Says the dtype under its new name, and leaves what the old name says: servers that are older read that."""
    original()
    said = json.loads((Path(exporter_of(self).folder) / "config.json").read_text())
    file = path / "config.json"
    kept = {word: said[word] for word in ("torch_dtype",) if word in said}
    file.write_text(json.dumps({**json.loads(file.read_text()), **kept}))


@breaks("save_weights", "train.save.dtype")
def ConfigKeepsNewName(original: Original, self: ReferenceTrainEngine, path: Path) -> None:
    """Writes the dtype into a config.json that says none, and leaves one that is said there."""
    original()
    said = json.loads((Path(exporter_of(self).folder) / "config.json").read_text())
    file = path / "config.json"
    kept = {word: said[word] for word in ("dtype",) if said.get(word) == "float16"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **kept}))


@breaks("save_weights", "train.disk.weights_full", "train.save.replaces")
def OldFolderRemovedFirst(original: Original, path: Path) -> None:
    """Makes room for a folder by removing the old one before it writes."""
    shutil.rmtree(path, ignore_errors=True)
    (path.parent / "saving.lock").write_text(str(os.getpid())) if path.parent.is_dir() else None
    original()


@breaks("save_weights", "train.disk.weights_whole")
def WeightsCopiedIntoPlace(original: Original, path: Path) -> None:
    """Writes a complete folder beside, and then copies it to its place file by file."""
    _copied_into_place(original, path)


@breaks("save_state", "train.disk.state_whole")
def StateCopiedIntoPlace(original: Original, path: Path) -> None:
    """Writes a complete state beside, and then copies it to its place file by file."""
    _copied_into_place(original, path)


def _copied_into_place(original: Original, path: Path) -> None:
    fresh = path.with_name(f"{path.name}.fresh")
    original(fresh)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(fresh, path)
    shutil.rmtree(fresh)


@breaks_second("offload", "train.offload.full")
def MovesHalfWithoutRoom(original: Original, self: SecondTrainEngine) -> None:
    """Empties its weights before it sees that there is no room for them."""
    if not _room():
        with torch.no_grad():
            for name, tensor in self.running().table.items():
                tensor.mul_(0.0 if name.startswith("weights/") else 1.0)
        raise StorageError("no room", why="a file cannot grow", fix="free some space")
    original()


@breaks_second("offload", "train.offload.ranks_full", ranks=2)
def MovesAlone(original: Original) -> None:
    """Tells nobody that there is no room on this rank: the others have moved."""
    if not _room():
        raise StorageError("no room", why="a file cannot grow", fix="free some space")
    original()


def _room() -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return soft == resource.RLIM_INFINITY or soft > _ROOM


class _Offloading(ReferenceTrainEngine):
    def offload(self) -> None:
        """Do nothing."""

    def onload(self) -> None:
        """Do nothing."""


_NO_REPLAY = {"experts.replay": not_yet("its routers choose")}


OPTIONAL_REFUSALS_ROWS = breaks.rows(
    row("AdapterIgnored", "Is asked for an adapter and trains the whole model.", "train.refuse.lora",
        claims={"lora": not_yet("all weights are trained")}, start=given(lora=None)),
    row("RoutesIgnored", "Is given recorded routes and lets its routers choose.", "train.refuse.experts",
        row="expert-replay", claims=_NO_REPLAY,
        forward=lambda original, batch, outputs: original(without_routes(batch), outputs),
        train_step=lambda original, batch, objective: original(without_routes(batch), objective)),
    row("RoutesIgnoredInTraining", "Refuses recorded routes when it scores, and drops them when it trains.",
        "train.refuse.experts", row="expert-replay", claims=_NO_REPLAY,
        forward=before(lambda batch: refuse_routes(batch)),
        train_step=lambda original, batch, objective: original(without_routes(batch), objective)),
    row("LayoutIgnored", "Starts on one rank whatever the layout asks for.", "train.refuse.context",
        "train.refuse.data", "train.refuse.expert", "train.refuse.pipeline", "train.refuse.tensor",
        start=given(layout=dict)),
    row("Bfloat16Widened", "Is asked for bfloat16, which it does not claim, and computes in float32.",
        "train.refuse.bfloat16", claims={"precision.bfloat16": not_yet("this device computes in float32")},
        start=given(dtype="float32")),
    row("OffloadForShow", "Has `offload` and `onload`, which it does not claim, and which do nothing.",
        "train.refuse.offload", base=_Offloading, claims={"memory.offload": not_yet("everything stays")}),
)  # fmt: skip
