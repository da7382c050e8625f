"""Trainers that save something else than the weights they hold, or break what lay there.

Knows: what each saves instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch

from areal_core.contract.errors import StorageError
from areal_proof.mutants.rows import Original, before, breaking, row, then
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


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
)  # fmt: skip


@breaks("save_weights", "train.save.dtype")
def ConfigKeepsDtype(original: Original, path: Path) -> None:
    """Leaves the dtype in config.json as it was in the model it started from."""
    original()
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}))


@breaks("save_weights", "train.disk.weights_in_the_way", "train.disk.weights_full")
def BareDiskErrors(original: Original) -> None:
    """Lets the operating system say that a disk is full."""
    try:
        original()
    except StorageError as error:
        raise OSError(str(error)) from None


@breaks("save_weights", "train.disk.weights_full", "train.save.replaces")
def OldFolderRemovedFirst(original: Original, path: Path) -> None:
    """Makes room for a folder by removing the old one before it writes."""
    shutil.rmtree(path, ignore_errors=True)
    (path.parent / "saving.lock").write_text(str(os.getpid())) if path.parent.is_dir() else None
    original()
