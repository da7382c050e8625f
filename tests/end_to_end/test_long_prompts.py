"""A data set with prompts that are too long trains a run on the others, and the run says how many it left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.contract.errors import DatasetError
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader
from areal_tasks.datasets.spell import SpellConfig, spell

from .one_process import settle_here, train_here

pytest.importorskip("areal_reference")

CONTEXT = 10
ROWS = 24


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every worker in this process."""
    settle_here(monkeypatch)


def test_prompts_that_leave_no_room_are_counted_at_the_start_and_never_generated_for(
    tmp_path: Path, model: Path
) -> None:
    """Without a failed or a rejected episode: the run has the others only."""
    long = {row["prompt"] for row in spell(SpellConfig(size=ROWS, min_word_len=8)) if len(row["prompt"]) >= CONTEXT}
    options = [f"data.options.size={ROWS}", "data.options.min_word_len=8"]
    train_here(tmp_path / "run", model, f"rollout.context_length={CONTEXT}", *options, "steps=2")

    events = list(read_lines(tmp_path / "run" / "events.jsonl"))
    kinds = [event["kind"] for event in events]
    (warning,) = (event for event in events if event["kind"] == "warning" and event["name"] == "prompts_too_long")
    with Reader(tmp_path / "run") as reader:
        asked = {reader.content(facts["id"])[0]["prompt"] for facts in reader.facts(Filter())}

    assert 0 < len(long) < ROWS and warning["value"] == len(long)
    assert kinds.index("warning") < kinds.index("weights_travel")
    assert asked and not asked & long
    assert not {"group_failed", "group_rejected"} & set(kinds)
    assert f"{len(long)} of {ROWS} prompts of data are too long" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_whose_prompts_are_all_too_long_ends_before_a_worker_starts(tmp_path: Path, model: Path) -> None:
    """The error names the bound and what to raise."""
    with pytest.raises(DatasetError, match=r"all 24 prompts of data(.|\n)*at most 9 tokens(.|\n)*context_length"):
        train_here(
            tmp_path, model, "rollout.context_length=9", f"data.options.size={ROWS}", "data.options.min_word_len=9"
        )

    assert "weights_travel" not in [event["kind"] for event in read_lines(tmp_path / "events.jsonl")]
