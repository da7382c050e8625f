"""A folder that is not what it should be is refused in our words, before the generator holds any of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from areal_core.contract.errors import ArealError
from areal_core.contract.inference import InferenceSpec
from areal_reference.infer.loading import load_model
from areal_torch.testing.hostile_folders import bounded, hostile_folders
from areal_torch.testing.models import make_tiny_model

WAYS = hostile_folders()


def read(folder: Path) -> None:
    """Load the folder as the generator does."""
    load_model(InferenceSpec(model_path=str(folder), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that is read."""
    folder = make_tiny_model(tmp_path_factory.mktemp("good") / "model", layers=1)
    read(folder)
    return folder


def judge(way: str, good: Path, into: Path) -> None:
    """Spoil the folder and read it: in time, in memory, and with nothing but errors of ours."""
    folder = into / "model"
    shutil.copytree(good, folder)
    WAYS[way](folder)
    try:
        with bounded():
            read(folder)
    except ArealError as error:
        assert error.code != ArealError.code
        assert error.why, error


@pytest.mark.parametrize("way", list(WAYS)[::11])
def test_it_is_refused_in_our_words(way: str, good: Path, tmp_path: Path) -> None:
    """Some of the ways to spoil a folder."""
    judge(way, good, tmp_path)


@pytest.mark.hostile
@pytest.mark.parametrize("way", WAYS)
def test_every_one_is_refused_in_our_words(way: str, good: Path, tmp_path: Path) -> None:
    """All of them."""
    judge(way, good, tmp_path)
