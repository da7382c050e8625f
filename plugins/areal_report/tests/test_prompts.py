"""What is said about prompts that were lost or trained on twice, from the events of a run alone."""

from __future__ import annotations

from typing import Any

import pytest

from areal_report.history import History
from areal_report.journal import Journal
from areal_report.prompts import Counted, count_prompts
from areal_report.summary import summarize

Event = dict[str, Any]


def started(version: int = 0) -> Event:
    return {"kind": "run_started", "version": version, "resumed": version > 0}


def batch(version: int, *rows: int, epoch: int = 0) -> Event:
    return {"kind": "batch_handed_over", "version": version, "task_ids": [f"train/{epoch}/{row}" for row in rows]}


def group(kind: str, row: int) -> Event:
    return {"kind": f"group_{kind}", "task_id": f"train/0/{row}", "error": "EpisodeFailed: no"}


def saved(version: int) -> Event:
    return {"kind": "checkpoint", "version": version}


FINISHED = {"kind": "run_ended", "status": "finished"}
STOPPED = {"kind": "run_ended", "status": "stopped"}


@pytest.mark.parametrize(
    ("events", "lost", "twice"),
    [
        pytest.param([batch(0, 1, 2), batch(1, 3, 4), FINISHED], 0, 0, id="each once"),
        pytest.param([batch(0, 1, 2), batch(1, 2, 3), FINISHED], 0, 1, id="one in two batches"),
        pytest.param([batch(0, 1, 2), batch(1, 1, 2, epoch=1), FINISHED], 0, 0, id="again in the next epoch"),
        pytest.param([group("failed", 9), batch(0, 1), saved(1), FINISHED], 1, 0, id="one that failed"),
        pytest.param(
            [group("failed", 9), batch(0, 1), saved(1), started(1), batch(1, 9), FINISHED], 0, 0, id="issued again"
        ),
        pytest.param(
            [group("failed", 9), batch(0, 1), saved(1), started(1), group("rejected", 9), FINISHED],
            *(0, 0),
            id="issued again and rejected",
        ),
        pytest.param([batch(0, 1), saved(1), batch(1, 2), started(1), batch(1, 2), FINISHED], 0, 0, id="a step again"),
        pytest.param(
            [batch(0, 1), saved(1), batch(1, 2), batch(2, 3), started(1), batch(1, 3), FINISHED],
            *(1, 0),
            id="one of two steps taken back",
        ),
        pytest.param(
            [
                *(batch(0, 1), saved(1), batch(1, 2), saved(2), batch(2, 3), started(2), batch(2, 3)),
                *(started(1), batch(1, 2), batch(2, 3), FINISHED),
            ],
            *(0, 0),
            id="two resumes, the second from an older checkpoint",
        ),
        pytest.param([batch(0, 1), batch(1, 2), STOPPED], 0, 0, id="an update that never ended"),
        pytest.param([batch(0, 1), batch(0, 1), FINISHED], 0, 0, id="a batch handed over again"),
        pytest.param([group("rejected", 5), batch(0, 1), FINISHED], 0, 0, id="one that was rejected"),
    ],
)
def test_prompts_are_counted_over_every_resume(events: list[Event], lost: int, twice: int) -> None:
    """What a resume took back was trained on by nobody; what it issued again is not missing."""
    resumed_at = [event["version"] for event in events if event["kind"] == "run_started"]

    assert count_prompts([started(), *events], resumed_at) == Counted(lost=lost, twice=twice)


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "batch_handed_over", "version": 0, "task_ids": ["a"]},
        {"kind": "batch_handed_over", "version": 0, "task_ids": [f"train/0/{10**12}"]},
        {"kind": "batch_handed_over", "version": "x", "task_ids": []},
        {"kind": "batch_handed_over", "task_ids": []},
        {"kind": "batch_handed_over", "version": 0, "task_ids": 3},
        {"kind": "group_failed", "task_id": None},
        {"kind": "checkpoint"},
    ],
)
def test_nothing_is_claimed_of_prompts_that_have_no_names(odd: Event) -> None:
    """Events of another version, or spoiled ones, give no number instead of a wrong one."""
    assert count_prompts([started(), odd], []) is None


def test_old_epochs_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they miss stays counted, what comes of them later is not."""
    monkeypatch.setattr("areal_report.prompts.MAX_BYTES", 4000)
    epochs = [batch(epoch, *range(0, 1000, 2), epoch=epoch) for epoch in range(8)]
    late = [batch(8, 0, 1), batch(9, 0, 1, epoch=7), FINISHED]

    assert count_prompts([group("failed", 1), *epochs, *late], []) == Counted(lost=1, twice=1)


def test_the_summary_says_what_was_lost_and_how_often_a_run_went_on() -> None:
    """A resume, a replica and a reward process that were started anew; a lost replica nobody replaced is no restart."""
    journal = Journal.of(
        [
            *(started(), group("failed", 9), started(1)),
            {"kind": "replica_lost", "replaced": True, "error": "x"},
            {"kind": "replica_lost", "replaced": False, "error": "x"},
            {"kind": "reward_process_replaced"},
        ]
    )
    unknown = summarize(History(), journal)
    journal.prompts = Counted(lost=1, twice=0)
    known = summarize(History(), journal)

    assert (unknown["prompts_lost"], unknown["prompts_twice"]) == (None, None)
    assert (known["prompts_lost"], known["prompts_twice"]) == (1, 0)
    assert (known["episodes_failed"], known["restarts"], journal.resumed_at) == (1, 3, [1])


def test_a_start_by_itself_takes_back_what_a_resume_would() -> None:
    """A step made again after the loss of a trainer trains nothing twice."""
    restarted = {"kind": "run_restarted", "number": 1, "version": 1, "error": "actor/0 was killed"}
    saved = {"kind": "checkpoint", "version": 1}
    events = [started(), batch(0, 0), saved, batch(1, 1), batch(2, 2), restarted, batch(1, 1), batch(2, 2), FINISHED]

    assert count_prompts(events, Journal.of(events).resumed_at) == Counted(lost=0, twice=0)
