"""The page of a run shows what there is, calmly, and obeys nothing of what it shows."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.errors import StorageError, WorkerDied
from areal_core.observe.events import EventLog
from areal_core.observe.jsonl import read_lines
from areal_report.completions import last_completions
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.metrics_shown import learning_charts
from areal_report.report import Page, render_page, write_page, write_picture
from areal_report.summary import summarize
from areal_report.traces import traces_of

Records = list[dict[str, Any]]
WriteStore = Callable[[Path, Sequence[dict[str, Any]]], None]
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \x1b]0;owned\x07\x1b[2J \u202eevil \ud800 & \x00"


class Tags(HTMLParser):
    """Checks that tags nest, and remembers what the page refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href")]
        assert tag not in ("script", "link", "iframe", "img")
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h2", "h3", "summary"):
            self.headings.append(data)


def page_of(records: Records, events: Records, *, status: str | None = None, **parts: Any) -> str:
    history, journal = History(records), Journal.of(events)
    summary = summarize(history, journal, status=status)
    return render_page(Page(title="t", summary=summary, history=history, journal=journal, **parts))


def test_the_report_is_one_page_that_needs_nothing_else(records: Records, events: Records) -> None:
    """Well-formed, no script, no link, no address of another machine; every promised part is there, in its order."""
    page = page_of(records, events, plan="the plan", versions={"torch": "2"}, config="seed: 1")
    tags = Tags(page)

    assert (tags.open, tags.links) == ([], [])
    assert not re.search(r"https?://|url\(|@import", page)
    assert [heading for heading in tags.headings if heading != "The run"] == [
        *("Reward", "Learning", "Entropy", "Divergence of the policy", "Tokens clipped", "Log-prob gap"),
        *("Response length", "Groups without signal", "Loss", "Gradient norm"),
        *("Speed", "Idle share", "Tokens per second", "Seconds of a step", "Episodes waiting"),
        *("Freshness", "Staleness", "Staleness over time"),
        *(
            "What went wrong on the way",
            "Plan",
            "Versions",
            "Summary",
            "Every number of the last step",
            "Configuration",
        ),
    ]
    assert "prefers-color-scheme:dark" in page


def test_what_was_not_measured_is_not_on_the_page(records: Records, events: Records) -> None:
    """No empty card, no dash for a number: a run with nothing but rewards has one chart."""
    bare = [{"step": record["step"], "reward": record["reward"]} for record in records]

    page = page_of(bare, events[:1])

    assert page.count("<svg") == 2, "the reward, wide and narrow"
    assert "not measured" not in page and "None" not in page
    assert "Speed" not in page and "Freshness" not in page and "evaluation" not in page


def test_groups_left_out_are_drawn_per_step_where_there_are_any() -> None:
    """A count that begins anew was resumed; where each point stands for several steps it is a mean over them."""
    counts = [3, 3, 8, 2, 4]
    records: Records = [{"step": step, "reward": 0.5, "filtered": n} for step, n in enumerate(counts, start=1)]
    long: Records = [{"step": step, "reward": 0.5, "filtered": 2 * step} for step in range(1, 5001)]

    def drawn(records: Records) -> dict[str, list[tuple[float, float]]]:
        charts = {each.title: each.chart for each in learning_charts(History(records))}
        return charts["Groups left out"].shown if "Groups left out" in charts else {}

    assert drawn(records) == {"left out by rollout.accept": [(1, 3), (2, 0), (3, 5), (4, 2), (5, 2)]}
    assert {value for _, value in drawn(long)["left out by rollout.accept"]} == {2}
    assert drawn([{**record, "filtered": 0} for record in records]) == {}


def test_the_report_shows_text_as_text(records: Records, events: Records) -> None:
    """An error, a plan or a name with markup or escapes in it is shown, not interpreted."""
    hostile = {"time": 1002.0, "kind": HOSTILE, "error": HOSTILE, "name": HOSTILE}
    warned = {"time": 1002.0, "kind": "warning", "name": HOSTILE, "says": HOSTILE, "advice": HOSTILE}
    named = [{**record, f"episode/{HOSTILE}": 1.0, HOSTILE: HOSTILE} for record in records]

    page = page_of(named, [*events, hostile, warned], plan=HOSTILE, versions={HOSTILE: HOSTILE}, config=HOSTILE)
    Tags(page)

    assert "<script" not in page and "<img" not in page and "<b>nan</b>" not in page
    assert "&lt;script&gt;" in page and "&lt;b&gt;nan&lt;/b&gt;" in page and "\\x1b]0;" in page and "\\u202e" in page
    assert all(c.isprintable() or c in "\n\t" for c in page)
    assert page.encode()


@given(
    rewards=st.lists(st.floats(), max_size=5),
    keep=st.sets(st.sampled_from(["wall_s", "loss", "train_busy_s", "staleness_histogram", "tokens_trained"])),
)
@settings(max_examples=15, deadline=None)
def test_the_report_is_made_of_whatever_there_is(rewards: list[float], keep: set[str]) -> None:
    """No record, one record, missing keys, NaN and infinite rewards: a page, and never `nan` in a picture."""
    full = {"wall_s": 1.0, "loss": float("nan"), "train_busy_s": 2.0, "staleness_histogram": {}, "tokens_trained": 1}
    records = [
        {"step": step, "reward": reward, **{name: full[name] for name in keep}}
        for step, reward in enumerate(rewards, start=1)
    ]

    page = page_of(records, [])

    assert Tags(page).open == []
    assert not re.search(r'(d|x\d?|y\d?|height|transform)="[^"]*(NaN|nan|inf)', page)


def test_a_long_run_gives_a_small_page() -> None:
    """Twenty thousand steps are averaged down: well under a megabyte."""
    records = [{"step": step, "reward": step % 7, "wall_s": float(step), "loss": 1.0} for step in range(20_000)]

    assert len(page_of(records, [])) < 300_000


def test_a_failed_run_leads_with_its_cause(records: Records, events: Records) -> None:
    """Code, what, why and what to try come first, then the last steps; only then everything else."""
    error = WorkerDied("worker actor/0 ended", why="exit code -9; <killed>", fix="give it more memory")
    ended = {"time": 1070.5, "kind": "run_ended", "status": "failed", "error": f"WorkerDied: {error}"}

    page = page_of(records, [*events[:3], ended], status="failed", resumable="/runs/a")
    text = unescape(re.sub(r"<[^>]+>", "\n", page.partition("</style>")[2]))
    places = [
        text.index(part)
        for part in (
            *("What ended it", "AREAL-E401", "WorkerDied: worker actor/0 ended", "after 1 min 10 s, 100 steps done"),
            *(
                "exit code -9; <killed>",
                "give it more memory",
                "areal train --resume /runs/a",
                "The last steps",
                "Reward",
            ),
        )
    ]

    assert places == sorted(places)
    assert text.count("worker actor/0 ended") == 1


def test_a_run_that_failed_in_its_first_second_has_its_cause_and_nothing_empty(events: Records) -> None:
    """No step, no metrics: no chart, no number, no table without rows."""
    ended = {"time": 1000.4, "kind": "run_ended", "status": "failed", "error": "ZeroDivisionError: division by zero"}

    page = page_of([], [events[0], ended], status="failed")

    assert "ZeroDivisionError: division by zero" in page and "no steps done" in page and "logs/" in page
    assert "<svg" not in page and "tiles" not in page.partition("</style>")[2] and "The last steps" not in page
    assert "not measured" not in page


def test_a_run_that_was_killed_says_so(records: Records, events: Records) -> None:
    """Nobody could write down how it ended; a run that goes on is not failed."""
    killed, alive = page_of(records, events[:2]), page_of(records, events[:2], status="running", written=1060.0)

    assert "The run ended without a word" in killed and "kill -9" in killed
    assert "What ended it" not in alive and "areal report" in alive


def test_warnings_are_told_with_what_to_try(records: Records, events: Records) -> None:
    """Before the charts, each once however often it came, and said to be over once it is."""
    warned = {"time": 1001.0, "kind": "warning", "name": "no_signal", "says": "no group had signal", "advice": "easier"}
    again = [warned, {**warned, "over": True}, warned]

    page, over = page_of(records, [*events, *again]), page_of(records, [*events, *again, {**warned, "over": True}])
    ended = {"time": 1070.0, "kind": "run_ended", "status": "failed", "error": "WorkerDied: gone"}
    failed = page_of(records, [*events, *again, ended], status="failed")

    assert (
        page.index("</header>") < page.index("no group had signal") < page.index("class='tiles'") < page.index("<svg")
    )
    assert failed.index("What ended it") < failed.index("no group had signal") < failed.index("class='tiles'")
    assert "no signal, 2 times<" in page and "try: easier" in page
    assert "no signal, 2 times, over<" in over


def test_failures_that_are_alike_are_told_once(records: Records, events: Records) -> None:
    """With their number; what ended the run is not among them."""
    many = [{"time": 1001.0 + n, "kind": "episode_failed", "error": f"RewardFailed: task {n}"} for n in range(300)]

    page = page_of(records, [events[0], *many])

    assert "episode_failed, 300 times" in page and "RewardFailed: task 299" in page and "task 12<" not in page


def test_the_page_has_the_best_the_median_and_the_worst_completion(
    tmp_path: Path, records: Records, write_store: WriteStore
) -> None:
    """Of the newest trained episodes, with reward and task; and of the newest evaluation."""
    write_store(
        tmp_path,
        [
            *({"answer": f"old{n}", "reward": 9.0, "step": 1} for n in range(3)),
            *({"answer": f"a{n:03}a", "reward": n / 127, "step": 7 + n // 64, "prompt": "say a"} for n in range(128)),
            *(
                {"answer": f"e{n}e", "reward": float(n), "kind": "eval", "fate": "evaluated", "step": 6}
                for n in range(5)
            ),
            {"answer": "older", "reward": -1.0, "kind": "eval", "fate": "evaluated", "step": 5},
            {"answer": "late", "reward": None, "fate": "waiting", "step": 9},
        ],
    )

    trained, evaluated = last_completions(tmp_path)
    page = page_of(records, [], status="finished", completions=[trained, evaluated])

    assert [(each.place, each.turns[1]["text"]) for each in trained.chosen] == [
        *(("best", "a127a"), ("median", "a064a"), ("worst", "a000a")),
    ]
    assert trained.more == "of 128 episodes of steps 7 to 8"
    assert [each.turns[1]["text"] for each in evaluated.chosen] == ["e4e", "e2e", "e0e"]
    assert page.index("Completions trained on") > page.index("<svg") and "train/0/130" in page and "say a" in page


def test_few_episodes_are_not_shown_twice(tmp_path: Path, write_store: WriteStore) -> None:
    """One is the best; two are the best and the worst."""
    write_store(tmp_path, [{"answer": "a", "reward": 1.0}, {"answer": "b", "reward": 0.0}])

    (trained,) = last_completions(tmp_path)

    assert [(each.place, each.turns[1]["text"]) for each in trained.chosen] == [("best", "a"), ("worst", "b")]


def test_a_completion_gives_no_orders(tmp_path: Path, records: Records, write_store: WriteStore) -> None:
    """Scripts, tags, terminal escapes, marks of direction and lone surrogates are shown; a huge one is cut."""
    hostile = HOSTILE.replace("\x00", "")
    write_store(
        tmp_path,
        [
            {
                "answer": hostile,
                "prompt": hostile,
                "reward": 1.0,
                "task_id": hostile.replace("\ud800", ""),
                "stop": "<b>",
            },
            {"answer": "x" * 1_000_000, "reward": 0.0},
        ],
    )

    page = page_of(records, [], status="finished", completions=last_completions(tmp_path))

    assert Tags(page).open == []
    assert "<script" not in page and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "\\x1b]0;owned\\x07" in page and "\\ud800" in page
    assert len(page) < 400_000 and "characters ...]" in page


@pytest.mark.parametrize("damage", ["none", "not a database", "another version"])
def test_a_store_that_cannot_be_read_costs_the_page_nothing(tmp_path: Path, damage: str) -> None:
    """A run of an older version has none; a damaged one is as good as none."""
    if damage == "not a database":
        (tmp_path / "episodes.sqlite").write_bytes(b"x" * 5000)
    if damage == "another version":
        import sqlite3

        sqlite3.connect(tmp_path / "episodes.sqlite").execute("PRAGMA user_version = 99")

    assert last_completions(tmp_path) == []


def test_what_was_lost_is_at_the_top(records: Records, events: Records) -> None:
    """Lost prompts even if there are none, failures and restarts if there are any; nothing of what is not known."""
    history, journal = History(records), Journal.of(events)
    summary = summarize(history, journal)
    pages = [
        render_page(Page(title="t", summary={**summary, **lost}, history=history, journal=journal))
        for lost in ({}, {"prompts_lost": 0, "prompts_twice": 0}, {"episodes_failed": 2, "restarts": 3})
    ]

    tiles = [dict(re.findall(r"<div><small>([^<]*)</small><b>([^<]*)</b></div>", page)) for page in pages]
    names = "prompts, lost / trained twice", "episodes failed", "restarts"
    assert [tuple(tile.get(name) for name in names) for tile in tiles] == [
        (None, None, None),
        ("0 / 0", None, None),
        (None, "2", "3"),
    ]


def test_what_resumes_changed_is_on_the_page(records: Records, events: Records) -> None:
    """A bend in the curve may have come from there; a run whose configuration stayed says nothing of it."""
    change = {"time": 1002.0, "kind": "configuration_changed", "version": 7, "text": "changed:\n  seed: <b> -> 2"}

    assert "at version 7, changed:\n  seed: &lt;b&gt; -&gt; 2" in page_of(records, [*events, change])
    assert "Changed by resumes" not in page_of(records, events)


def test_report_and_picture_are_files(tmp_path: Path, records: Records, events: Records) -> None:
    """The page replaces an older one at once, and is its owner's alone; the picture is a png."""
    history, journal = History(records), Journal.of(events)
    page = Page(title="t", summary=summarize(history, journal), history=history, journal=journal)
    for _ in range(2):
        write_page(tmp_path / "report.html", page)

    assert write_picture(tmp_path / "reward.png", history, journal)
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert not write_picture(tmp_path / "empty.png", History(), Journal())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "reward.png"]
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StorageError):
        write_page(tmp_path / "no" / "report.html", page)


def test_without_vl_convert_there_is_an_event_and_a_page_without_charts(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is none the worse, and both tell what to install."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("vl_convert"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    log = EventLog(tmp_path / "events.jsonl")

    assert not write_picture(tmp_path / "reward.png", History(records), Journal(), log.write)
    page = page_of(records, [], status="finished")
    log.close()

    assert [(event["kind"], event["fix"]) for event in read_lines(tmp_path / "events.jsonl")] == [
        ("no_picture", "pip install vl-convert-python")
    ]
    assert "pip install vl-convert-python" in page and "0.0" in page and "<svg" not in page


def test_traces_are_listed_with_what_opens_them(records: Records, events: Records, tmp_path: Path) -> None:
    """In order of steps; a run without traces has no such part."""
    for name in ("step-10/actor-rank0.json.gz", "step-9/rollout-rank0.json.gz", "step-9/.rollout-rank1.json.gz.part"):
        (tmp_path / "profile" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "profile" / name).touch()

    traces = traces_of(tmp_path)
    page = page_of(records, events, traces=traces)

    assert traces == ["profile/step-9/rollout-rank0.json.gz", "profile/step-10/actor-rank0.json.gz"]
    assert "\n".join(traces) in page and "ui.perfetto.dev" in page
    assert "Traces" not in page_of(records, events)
