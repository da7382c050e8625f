"""A run that was killed before its first checkpoint goes on from its beginning, with the episodes it had finished."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from areal_core.contract.errors import DatasetError, RunFolderError
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader

from .one_process import resume_here, settle_here, train_here

pytest.importorskip("areal_reference")
pytestmark = pytest.mark.slow

STEPS = 4


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every worker in this process."""
    settle_here(monkeypatch)


def _without_checkpoint(folder: Path, model: Path, *overrides: str) -> list[object]:
    """Make what is left of a run whose controller was killed before its first checkpoint; return its weights."""
    train_here(folder, model, *overrides)
    shutil.rmtree(folder / "checkpoints")
    return [record["weights"] for record in read_lines(folder / "metrics.jsonl")]


def test_it_trains_every_prompt_once_with_the_bits_of_a_run_that_nobody_killed(tmp_path: Path, model: Path) -> None:
    """The steps that were made are made again; groups of the starting weights come back from the store."""
    folder = tmp_path / "run"
    weights = _without_checkpoint(folder, model, "deterministic=true", "rollout.max_staleness=0")

    outcome = resume_here(folder)

    records = list(read_lines(folder / "metrics.jsonl"))
    with Reader(folder) as reader:
        trained = Counter((each["task_index"], each["member"]) for each in reader.facts(Filter(fate="trained")))
    (kept,) = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == "episodes_kept"]
    assert outcome.finished and [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert [record["weights"] for record in records] == weights
    assert trained == Counter((task, member) for task in range(2 * STEPS) for member in range(2))
    assert kept["groups"] == 2, "those of the first step were drawn by the starting weights"


def test_other_rows_are_refused_as_they_are_after_a_checkpoint(tmp_path: Path, model: Path) -> None:
    """A group that was kept would be taken for one of another prompt; the rows it began with can still go on."""
    folder = tmp_path / "run"
    _without_checkpoint(folder, model)

    for _ in range(2):
        with pytest.raises(DatasetError, match="the saved run had") as refused:
            resume_here(folder, "data.options.max_word_len=9")

    assert f"To continue: areal train --resume {folder}" in "".join(refused.value.__notes__)
    assert resume_here(folder, "data.options.max_word_len=10").finished


def test_a_replay_that_began_at_a_checkpoint_of_another_run_is_not_taken_for_one_at_its_beginning(
    tmp_path: Path, model: Path
) -> None:
    """Its steps would be made again from weights that are not those it began with."""
    folder = tmp_path / "run"
    _without_checkpoint(folder, model)
    (folder / "loop.json").unlink()  # a replay writes none
    before = (folder / "metrics.jsonl").read_text()

    with pytest.raises(RunFolderError, match="nothing to resume"):
        resume_here(folder)

    assert (folder / "metrics.jsonl").read_text() == before
