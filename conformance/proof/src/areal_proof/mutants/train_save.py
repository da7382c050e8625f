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
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_proof.mutants import mutant
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"


@mutant(ENGINE, killers=("train.save.loads", "train.save.starts"), row="served-policy-changes")
class SavesFirstWeights(ReferenceTrainEngine):
    """Saves the folder it was started from."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._source = spec.model_path
        return super().start(spec, rank)

    def save_weights(self, path: Path) -> None:
        shutil.copytree(self._source, path, dirs_exist_ok=True)


@mutant(ENGINE, killers=("train.save.complete",))
class TokenizerNotSaved(ReferenceTrainEngine):
    """Saves weights and config only."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        for file in path.glob("tokenizer*"):
            file.unlink()


@mutant(ENGINE, killers=("train.save.complete",))
class PickleSavedToo(ReferenceTrainEngine):
    """Saves a pickle of the weights besides."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        torch.save({"step": 1}, path / "extra_state.pt")


@mutant(ENGINE, killers=("train.save.replaces",))
class FoldersMerged(ReferenceTrainEngine):
    """Writes into a folder that is there and leaves its other files."""

    def save_weights(self, path: Path) -> None:
        fresh = path.with_name(f"{path.name}.fresh")
        super().save_weights(fresh)
        shutil.copytree(fresh, path, dirs_exist_ok=True)
        shutil.rmtree(fresh)


@mutant(ENGINE, killers=("train.save.no_effect",))
class SavingDraws(ReferenceTrainEngine):
    """Draws a random name for every folder."""

    def save_weights(self, path: Path) -> None:
        torch.randint(1 << 30, ())
        super().save_weights(path)


@mutant(ENGINE, killers=("train.save.dtype",))
class ConfigKeepsDtype(ReferenceTrainEngine):
    """Leaves the dtype in config.json as it was in the model it started from."""

    def save_weights(self, path: Path) -> None:
        super().save_weights(path)
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}))


@mutant(ENGINE, killers=("train.disk.weights_in_the_way", "train.disk.weights_full"))
class BareDiskErrors(ReferenceTrainEngine):
    """Lets the operating system say that a disk is full."""

    def save_weights(self, path: Path) -> None:
        try:
            super().save_weights(path)
        except StorageError as error:
            raise OSError(str(error)) from None


@mutant(ENGINE, killers=("train.disk.weights_full", "train.save.replaces"))
class OldFolderRemovedFirst(ReferenceTrainEngine):
    """Makes room for a folder by removing the old one before it writes."""

    def save_weights(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        (path.parent / "saving.lock").write_text(str(os.getpid())) if path.parent.is_dir() else None
        super().save_weights(path)
