"""Summary, report, picture, live progress and curve tell what the records say, whatever they say."""

from __future__ import annotations

import builtins
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from areal_core.contract.errors import StorageError
from areal_core.observe.events import EventLog
from areal_core.observe.jsonl import read_lines
from areal_core.observe.metrics import MetricsStream
from areal_report.charts import bar_chart, line_chart
from areal_report.curve import draw_curve, sparkline
from areal_report.progress import Progress
from areal_report.report import render_report, write_picture, write_report
from areal_report.summary import evaluation_points, staleness_counts, summarize, write_summary

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
]


def test_the_summary_has_every_promised_key(records: Records, events: Records) -> None:
    """Totals come from the last record, rewards from the outer tenths, the rest from the events."""
    summary = summarize(records, events)

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
    one, none = summarize(records[:1]), summarize([])

    assert one["reward_first"] == one["reward_last"] == records[0]["reward"]
    assert (none["reward_first"], none["eval_last"], none["steps"], none["status"]) == (None, None, 0, "crashed")
    assert list(none) == KEYS


def test_a_crashed_run_can_be_summed_up_from_its_files(tmp_path: Path, records: Records, events: Records) -> None:
    """What was written before a torn last line is enough; the arguments overrule the events."""
    stream, log = MetricsStream(tmp_path / "m.jsonl"), EventLog(tmp_path / "e.jsonl")
    for record in records[:50]:
        stream.write(record)
    for event in events[:3]:
        log.write(**{name: value for name, value in event.items() if name != "time"})
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"step": 51, "rew')

    summary = summarize(list(read_lines(tmp_path / "m.jsonl")), list(read_lines(tmp_path / "e.jsonl")))

    assert (summary["status"], summary["steps"], summary["max_staleness_configured"]) == ("crashed", 50, 2)
    assert summarize(records, events, status="stopped", max_staleness=7)["max_staleness_configured"] == 7


def test_a_resumed_run_forgets_the_end_of_its_first_attempt(events: Records, records: Records) -> None:
    """A status before the last start, and an evaluation beyond the last step, belong to an attempt taken back."""
    again = [*events, {"kind": "evaluated", "version": 180, "reward": 9.0}, {**events[0], "max_staleness": 4}]

    summary = summarize(records, again)

    assert (summary["status"], summary["max_staleness_configured"]) == ("crashed", 4)
    assert max(reward for _, reward in evaluation_points(records, again)) < 9.0


def test_the_summary_is_written_whole(tmp_path: Path, records: Records) -> None:
    """It reads back as json; where it cannot be written the error says so."""
    summary = summarize(records)
    write_summary(tmp_path / "summary.json", summary)

    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    with pytest.raises(StorageError):
        write_summary(tmp_path / "nowhere" / "summary.json", summary)


def test_staleness_counts_have_no_gaps() -> None:
    """A lag nobody had between two that somebody had is a bar of height 0."""
    records = [{"staleness_histogram": {"0": 2, "3": 1}}, {"staleness_histogram": {"0": 1}}, {}]

    assert staleness_counts(records) == {0: 3, 1: 0, 2: 0, 3: 1}


class Tags(HTMLParser):
    """Checks that tags nest, and remembers what the page refers to."""

    VOID = ("meta", "line", "circle", "polyline", "rect", "i")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href")]
        assert tag not in ("script", "link", "iframe")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h2", "summary"):
            self.headings.append(data)


def page_of(records: Records, events: Records, **parts: Any) -> str:
    options: dict[str, Any] = {"plan": "", "versions": {}, "config": ""} | parts
    return render_report(title="t", summary=summarize(records, events), records=records, events=events, **options)


def test_the_report_is_one_page_that_needs_nothing_else(records: Records, events: Records) -> None:
    """Well-formed, no script, no link, no address of another machine; every promised part is there."""
    page = page_of(records, events, plan="the plan", versions={"torch": "2"}, config="seed: 1")
    tags = Tags()

    tags.feed(page)

    assert (tags.open, tags.links) == ([], [])
    assert not re.search(r"https?://|url\(|@import", page)
    assert tags.headings[:3] == ["Reward", "Staleness of the episodes trained on", "Staleness over time"]
    assert {"Idle share", "Tokens per second", "What went wrong", "Plan", "Versions", "Configuration"} <= {
        *tags.headings
    }
    assert "prefers-color-scheme:dark" in page


def test_the_report_shows_text_as_text(records: Records, events: Records) -> None:
    """An error, a plan or a name with markup in it is shown, not interpreted."""
    page = page_of(records, events, plan="<script>alert(1)</script>", versions={"<i>": "<i>"}, config="</pre>")

    assert "<script>" not in page and "<b>nan</b>" not in page
    assert "&lt;b&gt;nan&lt;/b&gt;" in page


@given(
    rewards=st.lists(st.floats(), max_size=5),
    keep=st.sets(st.sampled_from(["wall_s", "loss", "train_busy_s", "staleness_histogram", "tokens_trained"])),
)
@settings(max_examples=40, deadline=None)
def test_the_report_is_made_of_whatever_there_is(rewards: list[float], keep: set[str]) -> None:
    """No record, one record, missing keys, NaN and infinite rewards: a page, and never `nan` in a picture."""
    full = {"wall_s": 1.0, "loss": float("nan"), "train_busy_s": 2.0, "staleness_histogram": {}, "tokens_trained": 1}
    records = [
        {"step": step, "reward": reward, **{name: full[name] for name in keep}}
        for step, reward in enumerate(rewards, start=1)
    ]

    page = page_of(records, [])
    tags = Tags()
    tags.feed(page)

    assert tags.open == []
    assert not re.search(r'(points|cx|cy|x|y|height)="[^"]*(nan|inf)', page)


def test_a_long_run_gives_a_small_page() -> None:
    """Twenty thousand steps are averaged down: well under a megabyte."""
    records = [{"step": step, "reward": step % 7, "wall_s": float(step), "loss": 1.0} for step in range(20_000)]

    assert len(page_of(records, [])) < 300_000


def test_report_and_picture_are_files(tmp_path: Path, records: Records, events: Records) -> None:
    """The page replaces an older one at once; the picture is a png."""
    summary = summarize(records, events)
    for _ in range(2):
        write_report(tmp_path / "report.html", title="t", summary=summary, records=records, events=events)

    assert write_picture(tmp_path / "reward.png", records, events)
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert write_picture(tmp_path / "empty.png", [], [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.png", "report.html", "reward.png"]
    with pytest.raises(StorageError):
        write_report(tmp_path / "no" / "report.html", title="t", summary=summary, records=records)


def test_without_matplotlib_there_is_an_event_and_no_picture(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is none the worse, and the event tells what to install."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    log = EventLog(tmp_path / "events.jsonl")

    assert not write_picture(tmp_path / "reward.png", records, [], log.write)
    log.close()

    assert [event["kind"] for event in read_lines(tmp_path / "events.jsonl")] == ["no_picture"]


def console(width: int, *, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, height=40, force_terminal=terminal, _environ={"TERM": "xterm"}), stream


@pytest.mark.parametrize("width", [1, 5, 20, 33, 60, 99, 100, 200])
def test_progress_fits_any_terminal(width: int, records: Records) -> None:
    """However narrow, it draws without an error, and no line is wider than a terminal of 20 columns or more."""
    screen, stream = console(width, terminal=True)

    with Progress(100, console=screen) as progress:
        for record in records[:30]:
            progress.step(record)
        progress.note("a note")

    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in stream.getvalue().splitlines()]
    assert max(len(line.strip("\r")) for line in lines if "note" not in line) <= max(20, width)


def test_progress_says_what_is_promised(records: Records) -> None:
    """Reward, evaluation, staleness, both token rates, queues, idle shares and the time left."""
    screen, stream = console(120, terminal=True)
    with Progress(100, console=screen) as progress:
        for record in records[:40]:
            progress.step(record)

    text = stream.getvalue()
    for part in ("reward", "eval", "at 40", "1.40 (max 2)", "4500 tok/s", "3750 tok/s", "in flight", "buffered"):
        assert part in text, part
    assert all(
        part in text for part in ("idle train", "50%", "idle infer", "25%", "left", "48.0 s", "▁", "█", "40/100")
    )


def test_without_a_terminal_there_is_one_plain_line_every_few_steps(records: Records) -> None:
    """No escape codes, one line at every tenth step and at the last, notes as they come."""
    stream = io.StringIO()
    with Progress(25, console=Console(file=stream, width=40), plain_every=10) as progress:
        progress.note("version 0: evaluation reward 0.020")
        for record in records[:25]:
            progress.step(record)

    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "version 0: evaluation reward 0.020",
        "step 10/25",
        "step 20/25",
        "step 25/25",
    ]
    assert "\x1b" not in stream.getvalue()


def test_progress_takes_a_record_that_says_nothing() -> None:
    """Whatever is missing is left out."""
    screen, _ = console(80, terminal=True)
    with Progress(3, console=screen) as progress:
        progress.step({"step": 1})

        assert progress.plain_line() == "step 1/3"


FLOATS = st.floats(min_value=-1e9, max_value=1e9) | st.sampled_from([float("nan"), float("inf")])


@given(
    points=st.lists(st.tuples(FLOATS, FLOATS), max_size=30),
    marks=st.lists(st.tuples(FLOATS, FLOATS), max_size=3),
    width=st.integers(1, 100),
    height=st.integers(1, 20),
)
@settings(max_examples=60)
def test_a_curve_fits_its_box(
    points: list[tuple[float, float]], marks: list[tuple[float, float]], width: int, height: int
) -> None:
    """Any points in any box: as many lines as asked for, none too wide."""
    drawn = draw_curve(points, marks=marks, width=width, height=height).splitlines()

    if drawn != ["nothing to draw"]:
        assert len(drawn) == max(2, height) + 2
        assert all(len(line) <= width for line in drawn)


def test_a_rising_curve_rises() -> None:
    """The first point is at the bottom left, the last at the top right, the range is on the axis."""
    drawn = draw_curve([(0, 0.0), (10, 1.0)], marks=[(10, 1.0)], width=30, height=5, title="reward").splitlines()

    assert drawn[0] == "reward"
    assert drawn[1].startswith("  1 │") and drawn[1].endswith("◆")
    assert drawn[5][5] != " " and drawn[5].startswith("  0 │")
    assert drawn[-1].split() == ["0", "step", "10"]


def test_a_sparkline_rises_and_fits() -> None:
    """Oldest first, never wider than asked for, flat and empty series included."""
    assert sparkline(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(range(1000), 10)[::9] == "▁█"
    assert len(sparkline(range(1000), 10)) == 10
    assert (sparkline([], 5), sparkline([2.0, 2.0], 5), sparkline([1.0], 0)) == ("", "▁▁", "")


def test_charts_without_data_say_so() -> None:
    """An empty series is `not measured`, never an empty frame."""
    assert "not measured" in line_chart({"a": []}) and "not measured" in bar_chart({}, x_label="x")
