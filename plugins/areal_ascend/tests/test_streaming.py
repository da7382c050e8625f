"""Weights from a trainer's NPU to an engine's, in two processes over the stand-ins, each confined to its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from areal_torch.testing.ranks import run_ranks

pytestmark = pytest.mark.ascend
SCRIPT = Path(__file__).with_name("streaming.py")
SEES = {"apart": ("3", "5"), "together": ("3", "3"), "hidden": ("3", "")}
"""The NPUs of the trainer and of the reader."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Run the trainer and the reader; return what each tells, by what they see."""
    from areal_torch.testing.models import make_tiny_model

    path = tmp_path_factory.mktemp("streaming")
    make_tiny_model(path / "model", vocab_size=66)
    found = {}
    for name, npus in SEES.items():
        folder = path / name
        folder.mkdir()
        environs = [{"ASCEND_RT_VISIBLE_DEVICES": npu} for npu in npus]
        run_ranks(SCRIPT, folder, 2, limit_s=200, environs=environs)
        told = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]
        found[name] = (told[0], told[1])
    return found


@pytest.mark.parametrize(("name", "version"), [(name, version) for name in SEES for version in (1, 2, 3)])
def test_every_tensor_arrives(name: str, version: int, ends: dict[str, Any]) -> None:
    """With the bytes that left, after every step of training, whichever backend the two can share."""
    trainer, reader = (end["versions"][str(version)] for end in ends[name])

    assert len(trainer["fingerprints"]) > 20
    assert trainer["fingerprints"] == reader["fingerprints"]


def test_versions_are_different_ones(ends: dict[str, Any]) -> None:
    """Else the first would do for all."""
    first, second = (ends["apart"][0]["versions"][version]["fingerprints"] for version in ("1", "2"))

    assert sum(first[name] != second[name] for name in first) > 20


@pytest.mark.parametrize(
    ("name", "backend"), [("apart", ("hccl", "npu")), ("together", ("gloo", "cpu")), ("hidden", ("gloo", "cpu"))]
)
def test_the_backend_follows_from_where_they_are(name: str, backend: tuple[str, str], ends: dict[str, Any]) -> None:
    """HCCL between two NPUs, though each process calls its own 0; gloo where one is shared or not to be seen."""
    group = ends[name][0]["versions"]["1"]["group"]

    assert backend == (group["backend"], group["device"])
    assert group == ends[name][0]["versions"]["2"]["group"], "the group is kept for the next version"


def test_what_is_asked_for_is_taken_or_refused(ends: dict[str, Any]) -> None:
    """gloo goes between any two; HCCL, asked for where it cannot be, is refused at both ends in the same words."""
    assert ends["apart"][0]["versions"]["3"]["group"]["backend"] == "gloo"
    assert ends["apart"][0]["versions"]["4"]["group"]["backend"] == "hccl"
    for name in ("together", "hidden"):
        for end in ends[name]:
            assert "cannot be streamed over hccl" in end["versions"]["4"]["error"]


def test_places_are_the_machines(ends: dict[str, Any]) -> None:
    """What the machine calls an NPU, not what the process does."""
    assert [end["place"].rpartition("/")[2] for end in ends["apart"]] == ["3", "5"]
    assert ends["hidden"][1]["place"] == "cpu"
