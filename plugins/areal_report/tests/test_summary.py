"""The numbers of a run, from what it wrote: exact, and in bounded memory however long it was."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.errors import StorageError
from areal_core.observe.events import EventLog
from areal_core.observe.metrics import MetricsStream
from areal_report.history import LAST, LIMIT, History
from areal_report.journal import MAX_CHANGES, MAX_KINDS, Journal
from areal_report.rates import idle_share, rate, window
from areal_report.summary import evaluation_points, smoothed, staleness_counts, summarize, write_summary

Records = list[dict[str, Any]]

KEYS = [
    "status",
    "steps",
    "seconds",
    "reward_first",
    "reward_last",
    "eval_first",
    "eval_last",
    "max_staleness_configured",
    "max_staleness_seen",
    "episodes_trained",
    "tokens_generated",
    "tokens_trained",
    "weight_updates",
    "train_backend",
    "infer_backend",
    "idle_share_train",
    "idle_share_infer",
    "prompts_lost",
    "prompts_twice",
    "episodes_failed",
    "restarts",
]


def test_the_summary_has_every_promised_key(records: Records, events: Records) -> None:
    """Totals come from the last record, rewards from the outer tenths, the rest from the events."""
    summary = summarize(History(records), Journal.of(events))

    assert list(summary) == KEYS
    assert summary["reward_first"] == pytest.approx(sum(r["reward"] for r in records[:10]) / 10)
    assert summary["reward_last"] == pytest.approx(sum(r["reward"] for r in records[90:]) / 10)
    expected = {
        "status": "finished",
        "steps": 100,
        "eval_first": 0.02,
        "eval_last": 0.95,
        "max_staleness_configured": 2,
        "max_staleness_seen": 2,
        "episodes_trained": 12800,
        "tokens_generated": 360000,
        "tokens_trained": 300000,
        "weight_updates": 100,
        "train_backend": "fsdp:d1",
        "infer_backend": "x:d1",
        "idle_share_train": pytest.approx(0.5),
        "idle_share_infer": pytest.approx(0.25),
        "seconds": pytest.approx(80.0),
    }
    assert {name: summary[name] for name in expected} == expected


def test_a_tenth_is_never_empty(records: Records) -> None:
    """A run of one step has first and last reward; a run of none has null, and still a summary."""
    one, none = summarize(History(records[:1]), Journal()), summarize(History(), Journal())

    assert one["reward_first"] == one["reward_last"] == records[0]["reward"]
    assert (none["reward_first"], none["eval_last"], none["steps"], none["status"]) == (None, None, 0, "crashed")
    assert list(none) == KEYS


def test_a_crashed_run_can_be_summed_up_from_its_files(tmp_path: Path, records: Records, events: Records) -> None:
    """What was written before a torn last line is enough; the argument overrules the events."""
    stream, log = MetricsStream(tmp_path / "m.jsonl"), EventLog(tmp_path / "e.jsonl")
    for record in records[:50]:
        stream.write(record)
    for event in events[:3]:
        log.write(**{name: value for name, value in event.items() if name != "time"})
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"step": 51, "rew')

    summary = summarize(History.read(tmp_path / "m.jsonl"), Journal.read(tmp_path / "e.jsonl"))

    assert (summary["status"], summary["steps"], summary["max_staleness_configured"]) == ("crashed", 50, 2)
    assert summarize(History(records), Journal.of(events), status="stopped")["status"] == "stopped"


def test_a_resumed_run_forgets_the_end_of_its_first_attempt(events: Records, records: Records) -> None:
    """A status before the last start, and an evaluation beyond the last step, belong to an attempt taken back."""
    again = [*events, {"kind": "evaluated", "version": 180, "reward": 9.0}, {**events[0], "max_staleness": 4}]

    summary = summarize(History(records), Journal.of(again))

    assert (summary["status"], summary["max_staleness_configured"]) == ("crashed", 4)
    assert max(reward for _, reward in evaluation_points(History(records), Journal.of(again))) < 9.0


def test_the_summary_is_written_whole(tmp_path: Path, records: Records) -> None:
    """It reads back as json; where it cannot be written the error says so."""
    summary = summarize(History(records), Journal())
    write_summary(tmp_path / "summary.json", summary)

    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    with pytest.raises(StorageError):
        write_summary(tmp_path / "nowhere" / "summary.json", summary)


def test_staleness_counts_have_no_gaps() -> None:
    """A lag nobody had between two that somebody had is a bar of height 0."""
    records = [
        {"step": 1, "staleness_histogram": {"0": 2, "3": 1}},
        {"step": 2, "staleness_histogram": {"0": 1}},
        {"step": 3},
    ]

    assert staleness_counts(History(records)) == {0: 3, 1: 0, 2: 0, 3: 1}


def test_a_long_history_is_kept_small_and_true() -> None:
    """Of 10,000 steps 1,000 records at most: means are means, counts grow, extremes stay, the last ten are whole."""
    history = History(
        {"step": step, "reward": float(step % 2), "wall_s": 2.0 * step, "x_max": step % 100, "staleness_max": step % 7}
        for step in range(1, 10_001)
    )
    records = history.records

    assert (len(records) <= LIMIT, history.num_steps, len(history.last), history.stride) == (True, 10_000, LAST, 16)
    assert {record["reward"] for record in records} == {0.5}
    assert [record["wall_s"] for record in records] == [2.0 * record["step"] for record in records]
    assert records[-1]["step"] == 10_000
    assert max(record["x_max"] for record in records) == 99
    assert history.max_staleness == 6
    assert summarize(history, Journal())["reward_last"] == 0.5


def test_rates_are_over_a_window_and_by_the_clock_of_the_count() -> None:
    """A fleet read every 10 steps is half idle at every step, although 9 of 10 steps saw nothing of it."""
    records = [
        {
            "step": step,
            "wall_s": 0.2 * step,
            "infer_wall_s": 2.0 * (step // 10),
            "infer_busy_s": 1.0 * (step // 10),
            "tokens_generated": 200 * (step // 10),
        }
        for step in range(1, 101)
    ]

    for end in range(10, 100):
        start = window(records, end, "infer_busy_s")
        assert records[end]["step"] - start["step"] >= 10
        assert idle_share(start, records[end], "infer_busy_s") == pytest.approx(0.5)
        assert rate(start, records[end], "tokens_generated") == pytest.approx(100.0)


def test_runs_from_before_the_fleets_clock_have_rates_too() -> None:
    """Over the seconds of the steps, as they were meant."""
    records = [{"step": step, "wall_s": 1.0 * step, "infer_busy_s": 0.25 * step} for step in range(1, 31)]

    assert idle_share(window(records, 29, "infer_busy_s"), records[29], "infer_busy_s") == pytest.approx(0.75)
    assert rate({"wall_s": 5.0, "infer_busy_s": 9.0}, records[29], "infer_busy_s") is None


def test_smoothing_is_a_centred_mean() -> None:
    """Over a tenth of the points, fewer at both ends; it says over how many."""
    smooth, steps = smoothed([(x, float(x)) for x in range(100)])

    assert steps == 11
    assert smooth[0] == (0, 2.5) and smooth[50] == (50, 50.0) and smooth[99] == (99, 96.5)


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:  # Any: what the work returns
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_two_hundred_thousand_events_are_read_in_two_megabytes(tmp_path: Path) -> None:
    """Evaluations, failures with texts of their own and everything else: what is kept does not grow with the file."""
    path = tmp_path / "events.jsonl"
    with path.open("w") as file:
        file.write('{"time":0.5,"kind":"run_started","max_staleness":2}\n')
        for number in range(1, 40_000):
            tasks = f'["train/{number // 9}/{number % 9}","train/{number}/{number % 1000}"]'
            file.write(f'{{"time":{number},"kind":"batch_handed_over","version":{number},"task_ids":{tasks}}}\n' * 3)
            file.write(f'{{"time":{number},"kind":"episode_failed","error":"task {number}: {"x" * 50}"}}\n')
            file.write(f'{{"time":{number},"kind":"evaluated","version":{number},"reward":0.5}}\n')

    journal, peak = peak_of(lambda: Journal.read(path))
    (failure,) = journal.failures.values()

    assert peak < 2_000_000
    assert (failure.count, failure.first, failure.last) == (39_999, 1.0, 39_999.0)
    assert min(journal.evaluations) == 1 and max(journal.evaluations) == 39_999


def test_failures_of_ever_new_kinds_are_counted_and_not_kept() -> None:
    """Fifty are shown, the rest is a number."""
    journal = Journal.of({"kind": "odd", "error": "x" * n} for n in range(1, 101))

    assert (len(journal.failures), journal.others) == (MAX_KINDS, 100 - MAX_KINDS)


def test_restarts_are_counted_and_what_was_lost_is_among_what_went_wrong() -> None:
    """A run that started again by itself is whole, and says so."""
    lost = {"time": 2.0, "kind": "run_restarted", "number": 1, "version": 3, "error": "actor/0 was killed"}
    journal = Journal.of([{"time": 1.0, "kind": "run_started"}, lost, {**lost, "time": 3.0, "number": 2}])
    (failure,) = journal.failures.values()

    assert (summarize(History(), journal)["restarts"], journal.resumed_at) == (2, [3, 3])
    assert (failure.text, failure.count, journal.ended) == ("actor/0 was killed", 2, {})


def test_the_journal_keeps_what_the_last_resumes_changed() -> None:
    """With the version they went on from; of very many the last."""
    journal = Journal.of(
        {"kind": "configuration_changed", "version": n, "text": f"changed:\n  steps: {n} -> {n + 1}"}
        for n in range(100)
    )

    assert len(journal.changes) == MAX_CHANGES
    assert journal.changes[-1] == "at version 99, changed:\n  steps: 99 -> 100"


def test_the_journal_knows_the_last_attempt() -> None:
    """A run that failed and was resumed is not failed; what ended it before is among what went wrong."""
    journal = Journal.of(
        [
            {"time": 1.0, "kind": "run_started", "name": "a"},
            {"time": 2.0, "kind": "run_ended", "status": "failed", "error": "WorkerDied: gone"},
            {"time": 3.0, "kind": "run_started", "name": "b"},
        ]
    )

    assert (journal.started["name"], journal.ended, journal.num_starts, journal.began) == ("b", {}, 2, 1.0)
    assert [each.text for each in journal.failures.values()] == ["WorkerDied: gone"]
