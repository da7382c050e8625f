"""Judged survivors: read, matched, refused; what they do to a score."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from areal_conformance.mutate.mutants import Key
from areal_conformance.mutate.record import Record, Row, to_json
from areal_conformance.mutate.report import markdown, ranges, text, write
from areal_conformance.mutate.score import Score
from areal_conformance.mutate.triage import Said, Verdict, read_triage, stale, suggestion
from areal_conformance.mutate.trial import Fate, Trial
from areal_core.contract.errors import ConfigError

KEY = Key(path="areal_mine/core.py", function="Engine.pause", operator="boundary", before='x["a"] < 1', after="x <= 1")


def row(number: int, fate: Fate, said: Said | None = None) -> Row:
    key = Key(path="areal_mine/core.py", function="f", operator="constant", before=str(number), after="0")
    trial = Trial(fate=fate, checks=("workflow.a",), killer="workflow.a" if fate is Fate.KILLED else "")
    return Row(key=key, line=number, old=f"a = {number}", new="a = 0", trial=trial, said=said)


def record(*rows: Row) -> Record:
    return Record(
        role="workflow",
        name="mine",
        origin="areal-mine 1.0",
        command="areal conformance mutate --backend mine",
        started="2026-01-01T00:00:00+00:00",
        seed=1,
        asked=len(rows),
        population={"areal_mine/core.py": 50},
        rows=rows,
        planned=len(rows),
    )


def test_what_is_suggested_can_be_filled_in_and_read(tmp_path: Path) -> None:
    """A survivor's entry, with a verdict and a reason, is matched by the key it was made of."""
    path = tmp_path / "mutation.toml"
    filled = suggestion([KEY]).replace('verdict = ""', 'verdict = "equivalent"').replace('why = ""', 'why = "even"')
    path.write_text(filled)

    assert read_triage([path, tmp_path / "absent.toml"]) == {
        KEY: Said(verdict="equivalent", why="even", file=str(path))
    }


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (
            ('verdict = ""  # equivalent, out of contract, or gap\nwhy = ""', 'verdict = "fine"\nwhy = "w"'),
            "'equivalent', '",
        ),
        (('verdict = ""', 'verdict = "gap"'), "missing: why"),
        (('why = ""', 'why = "even"\nline = 3'), "unknown: line"),
        (("[[mutant]]", "[[mutant"), "cannot be read"),
    ],
)
def test_a_wrong_entry_is_refused(spoilt: tuple[str, str], told: str, tmp_path: Path) -> None:
    """An unknown verdict, no reason, a key nobody reads, no TOML: each is named with its file."""
    path = tmp_path / "mutation.toml"
    path.write_text(suggestion([KEY]).replace(*spoilt))

    with pytest.raises(ConfigError, match=r"mutation\.toml") as caught:
        read_triage([path])

    assert told in str(caught.value)


def test_an_entry_for_a_mutant_that_is_none_any_more_is_told() -> None:
    """Only for modules that were looked at."""
    triage = {KEY: Said(verdict="gap", why="none yet")}

    assert stale(triage, [], ["areal_mine/core.py"]) == [KEY]
    assert stale(triage, [KEY], ["areal_mine/core.py"]) == stale(triage, [], ["areal_mine/other.py"]) == []


def test_excused_survivors_leave_the_score_and_gaps_stay() -> None:
    """Equivalent and out of contract are not counted; a gap, an unseen line and an unjudged survivor are."""
    excused = [
        row(1, Fate.SURVIVED, Said(verdict=Verdict.EQUIVALENT, why="w")),
        row(2, Fate.UNSEEN, Said(verdict=Verdict.OUT_OF_CONTRACT, why="w")),
    ]
    counted = [row(3, Fate.KILLED), row(4, Fate.SURVIVED, Said(verdict=Verdict.GAP, why="w")), row(5, Fate.UNSEEN)]
    died_after_all = row(6, Fate.KILLED, Said(verdict=Verdict.EQUIVALENT, why="w"))

    assert record(*excused, *counted, died_after_all).score == Score(2, 4)


def test_what_python_refuses_has_a_score_without_it() -> None:
    """A mutant that raises TypeError wherever it runs says nothing of a check; one that a check judged does."""
    refused = attrs.evolve(row(1, Fate.KILLED).trial, message="the backend raised TypeError: int() takes no path")
    judged = attrs.evolve(refused, message="expected version 3, got 2: ATypeErrorsName")
    made = record(*(attrs.evolve(row(2, Fate.KILLED), trial=trial) for trial in (refused, judged)), row(3, Fate.UNSEEN))

    assert made.score == Score(2, 3)
    assert made.score_of_valid == Score(1, 2)
    assert "score without 1 that any call tells (TypeError and the like): 1 of 2, 50.0%" in text(made)
    assert "any call tells" not in text(record(row(4, Fate.KILLED)))


def test_wilsons_interval() -> None:
    """Known values: 31 of 40, none and all of ten, nothing at all."""
    assert Score(31, 40).interval == pytest.approx((0.6250, 0.8768), abs=1e-4)
    assert Score(0, 10).interval == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert Score(10, 10).interval == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert Score(0, 0).interval == (0.0, 1.0)


def test_the_report_tells_survivors_from_lines_nobody_runs(tmp_path: Path) -> None:
    """Both with place, operator and the line before and after; the files hold what is printed."""
    made = record(row(1, Fate.KILLED), row(2, Fate.SURVIVED), row(3, Fate.UNSEEN))
    made = attrs.evolve(made, unrun={"areal_mine/core.py": (3, 4, 5, 9), "areal_mine/other.py": ()})
    told = text(made)

    assert "areal_mine/core.py: 3-5, 9" in told and "other.py" not in told
    assert ranges((1, 3, 4)) == "1, 3-4"
    survived, unseen = told.index("survived every check"), told.index("no check ever runs")
    assert survived < told.index("areal_mine/core.py:2 f constant") < unseen < told.index("areal_mine/core.py:3")
    assert "- a = 2" in told and "+ a = 0" in told and "score: 1 of 3, 33.3%" in told
    assert told in markdown(made)

    paths = write(made, tmp_path / "out")
    assert [path.name for path in paths] == ["mutation.json", "mutation.md", "survivors.toml"]
    assert paths[2].read_text().count("[[mutant]]") == 2
    assert to_json(made)["fates"] == {"excused": 0, "killed": 1, "refused": 0, "survived": 1, "unseen": 1}
