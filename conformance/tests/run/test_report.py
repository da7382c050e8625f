"""Reports: rendered from the record alone, and the record held to its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest
from tools.report_table import table

from areal_conformance.outcome import ALLOWED, DISTANCE, Outcome
from areal_conformance.report import write_reports
from areal_conformance.report.compare import compare, text
from areal_conformance.report.markdown import markdown
from areal_conformance.report.page import page
from areal_conformance.report.parts import FOOTER, distance
from areal_conformance.run.plan import closed
from areal_conformance.run.record import (
    SCHEMA,
    Answer,
    Declared,
    Family,
    Record,
    Row,
    Subject,
    Widened,
    plain,
    read_record,
)
from areal_core.contract.errors import ConfigError

NASTY = "expected <b>3</b> & 'x' | `y`\n```\ngot </script><script>alert(1)</script>"


@pytest.fixture
def record(row: Callable[..., Row]) -> Record:
    """Return a record in which everything occurs."""
    rows = [row(f"a.{end.value.replace('-', '_')}", end, message=NASTY, known="") for end in Outcome]
    rows.append(row("b.noted", notes=("slow | odd",), numbers={"gap": 1e-7}, seconds=1.5, claims=("pause.keep",)))
    opened = Record(
        suite="1.0",
        core="1.0",
        contract={"train": "1.1", "workflow": "1.0"},
        subject=Subject(role="workflow", name="toy", device="cpu", ranks=2, level=4, origin="toy 1.0"),
        claims=(Answer(key="pause.keep", support="full", counts=True, why="<why>"),),
        families=(Family(name="qwen3", drawn=5),),
        traits=("rope.yarn", "biases"),
        tolerances=(Widened(check="workflow.a.one", atol=1e-3, rtol=0.0, why="bfloat16"),),
        ledger=(Declared(check="c", kind="bug", match="m", reason="r", issue="i", expires="2030-01-01"),),
        checks=tuple(rows),
        laws={"7": "A weight update is all or nothing."},
        versions={"python": "3.11"},
        started="2026-01-01T00:00:00+00:00",
        command="areal conformance run --backend toy",
    )
    return closed(opened, rows, 12.5)


class Page(HTMLParser):
    """Collects what a browser would see."""

    VOID = ("meta", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(given)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop(), f"</{tag}> closes another element"


def test_distance_stands_at_the_head(record: Record, row: Callable[..., Row]) -> None:
    """How far a pair is from the oracle is told by page and text; a run without the certificate tells nothing."""
    learned = row("b.learning", numbers={DISTANCE: 1.4e-5, ALLOWED: 5e-4})
    certified = attrs.evolve(record, checks=(*record.checks, learned))

    assert distance(record) == ""
    assert distance(certified) == f"1.4e-05, 5.0e-04 allowed ({learned.id})"
    assert distance(certified) in markdown(certified)
    assert distance(certified) in page(certified)


def test_json_comes_back(record: Record, tmp_path: Path) -> None:
    """What is written is what is read."""
    write_reports(record, tmp_path)

    assert record == read_record(tmp_path)
    assert record == read_record(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["schema"] == SCHEMA


def test_the_schema_is_pinned(record: Record) -> None:
    """A field that goes or changes its meaning needs another schema number."""
    data = plain(record)

    assert SCHEMA == 1
    assert {
        "schema", "suite", "core", "contract", "subject", "verdict", "line", "standings", "left_out", "claims",
        "tolerances", "ledger", "checks", "notes", "laws", "versions", "git", "seed", "started", "seconds", "command",
        "sources", "bounds", "families", "traits",
    } == set(data)  # fmt: skip
    assert {
        "id", "title", "law", "spec", "level", "tier", "claims", "provisional", "outcome", "message", "seconds",
        "notes", "numbers", "known",
    } == set(data["checks"][0])  # fmt: skip
    assert {
        "role", "name", "device", "ranks", "level", "origin", "mutant", "imports", "contract", "stand_ins",
        "patience",
    } == set(data["subject"])  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 99}, "schema 99"),
        ({"checks": [{"id": "x"}]}, "not well formed"),
        ({"subject": None}, "not well formed"),
    ],
)
def test_what_is_no_report_is_refused(record: Record, tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """By name, not by a traceback."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**plain(record), **change}), encoding="utf-8")

    with pytest.raises(ConfigError, match=told):
        read_record(path)


def test_fields_of_a_later_suite_are_ignored(record: Record, tmp_path: Path) -> None:
    """At the head and in a row: a field more keeps the schema's number."""
    data = plain(record)
    rows = [{**one, "later": [1]} for one in data["checks"]]
    (tmp_path / "report.json").write_text(json.dumps({**data, "checks": rows, "later": {}}), encoding="utf-8")

    assert read_record(tmp_path) == record


def test_a_file_that_is_not_there_or_no_json_is_told(tmp_path: Path) -> None:
    """With what to give."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_record(tmp_path)
    (tmp_path / "report.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no JSON"):
        read_record(tmp_path)


def test_line_one_is_line_one(record: Record) -> None:
    """Before any heading: the denominators."""
    assert record.line == markdown(record).splitlines()[0]


def test_markdown_holds_every_check_and_the_footer(record: Record) -> None:
    """And what went wrong, with the law's sentence; a table cell is one cell."""
    shown = markdown(record)

    for row in record.checks:
        assert f"| `{row.id}` |" in shown
    assert "law 7: A weight update is all or nothing." in shown
    assert FOOTER in shown
    assert "areal conformance run --backend toy" in shown
    assert all(line.count("|") >= 3 for line in shown.splitlines() if line.startswith("|"))
    assert shown.count("```") % 2 == 0


def test_models_and_traits_are_named(record: Record) -> None:
    """What a certificate is about: families, how many of each were drawn, and what else of a config.json was."""
    shown = markdown(record)

    assert "| `qwen3` | 5 |" in shown
    assert "| traits of models | rope.yarn, biases |" in shown
    assert "qwen3" in page(record)


def test_a_device_that_was_not_there_is_told_before_anything_else(record: Record, tmp_path: Path) -> None:
    """In the heading, beside the verdict, in the list of all reports; of the device itself nothing is said."""
    simulated = attrs.evolve(
        record, subject=attrs.evolve(record.subject, device="npu", stand_ins="Left open: <speed>.")
    )
    write_reports(simulated, tmp_path / "made")

    shown, seen, listed = markdown(simulated), page(simulated), table(tmp_path)
    assert "No npu computed any of this. Left open: <speed>." in shown[: shown.index("| origin |")]
    assert "on npu stand-ins, 2 ranks" in shown
    assert "No npu computed any of this. Left open: &lt;speed&gt;." in seen[: seen.index("<h2>")]
    assert "| npu stand-ins | 0 to 4 |" in listed
    assert not [words for words in (markdown(record), page(record)) if "stand-ins" in words or "computed" in words]


def test_html_is_well_formed_and_fetches_nothing(record: Record) -> None:
    """One file; what a backend said is text, never markup."""
    shown = page(record)
    parser = Page()
    parser.feed(shown)

    assert parser.open == []
    assert sum(tag == "script" for tag, _ in parser.tags) == 1
    assert not [tag for tag, given in parser.tags if {"src", "href"} & set(given)]
    assert "http://" not in shown and "https://" not in shown and "@import" not in shown
    assert "prefers-color-scheme:dark" in shown


def test_html_can_be_filtered_and_searched(record: Record) -> None:
    """A button for each outcome there is; every check carries its words."""
    parser = Page()
    parser.feed(page(record))
    buttons = {given["data-outcome"] for tag, given in parser.tags if tag == "button"}
    checks = [given for tag, given in parser.tags if tag == "details" and "data-text" in given]

    assert {str(outcome) for outcome in Outcome} == buttons
    assert len(record.checks) == len(checks)
    assert all("claim" in str(given["data-text"]) or "t." in str(given["data-text"]) for given in checks)


def test_html_draws_a_bar_a_level(record: Record) -> None:
    """With what it stands for in words."""
    labels = [given["aria-label"] for tag, given in _tags(record) if given.get("role") == "img"]

    assert len(labels) == 1
    assert "1 fail" in str(labels[0])


def test_an_empty_run_still_renders(record: Record) -> None:
    """Nothing ran, and the report says so."""
    empty = closed(attrs.evolve(record, checks=(), claims=(), ledger=(), tolerances=()), [], 0.0)

    assert "incomplete" in markdown(empty)
    assert "incomplete" in page(empty)


def test_compare_tells_worse_better_and_gone(row: Callable[..., Row], record: Record) -> None:
    """A check that fails now is worse; one that skips now is worse than a pass."""
    old = closed(
        attrs.evolve(record, checks=tuple(map(row, "abcd"))), [row("a"), row("b", "fail"), row("c"), row("d")], 1
    )
    new_rows = [row("a", "fail"), row("b"), row("c", "skip"), row("e")]
    new = closed(attrs.evolve(record, checks=tuple(new_rows), versions={"python": "3.12"}, claims=()), new_rows, 1)
    found = compare(old, new)

    assert found.worse == (
        ("workflow.a", "pass", "fail"),
        ("workflow.c", "pass", "skip"),
        ("workflow.d", "pass", "none"),
    )
    assert found.better == (("workflow.b", "fail", "pass"),)
    assert "+ workflow.e: pass" in found.other
    assert "~ version of python: 3.11 -> 3.12" in found.other
    assert "~ claim pause.keep: yes -> none" in found.other
    assert "worse: workflow.a: pass -> fail" in text(old, new, found)


def test_compare_of_the_same_is_empty(record: Record) -> None:
    """And says so."""
    found = compare(record, record)

    assert (found.worse, found.better, found.other) == ((), (), ())
    assert "no check, claim or version is different" in text(record, record, found)


def _tags(record: Record) -> list[tuple[str, dict[str, str | None]]]:
    parser = Page()
    parser.feed(page(record))
    return parser.tags
