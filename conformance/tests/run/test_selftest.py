"""The self-test: what it asserts, and that no broken backend can stop it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from areal_conformance.check import Check, Level
from areal_conformance.outcome import Outcome
from areal_conformance.target import Locator
from areal_core.contract.errors import ConfigError
from areal_proof.command import _part
from areal_proof.mutants import Mutant
from areal_proof.selftest import judge
from areal_proof.selftest.crew import do_all
from areal_proof.selftest.matrix import Line, differences, read_matrix, renewed, write_matrix
from areal_proof.selftest.references import REFERENCES, present
from areal_proof.selftest.work import CHUNK, Ended, Item, mutant_items, reference_items


def mutant(name: str, *killers: str, row: str = "", ranks: int = 1) -> Mutant:
    """Return a mutant of a workflow."""
    return Mutant(
        name=name, of="workflow/toy", defect="s", killers=killers, row=row, ranks=ranks, breaks=lambda whole: whole
    )


def ended(check: str, outcome: Outcome, of: str = "Torn", message: str = "") -> Ended:
    """Return an end of a check on a mutant, or on a reference if `of` is empty."""
    item = Item(role="workflow", name="toy", ranks=1, checks=(check,), mutant=of)
    return Ended(item=item, check=check, outcome=outcome, message=message)


def test_a_killed_mutant_has_no_fault() -> None:
    """Every declared killer failed."""
    ends = [ended("workflow.a", Outcome.FAIL), ended("workflow.b", Outcome.FAIL)]

    assert judge.mutant_faults([mutant("Torn", "workflow.a", "workflow.b")], ends) == []


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.SKIP, Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.NOT_RUN])
def test_only_a_failure_is_a_kill(outcome: Outcome) -> None:
    """A check that could not be made has caught nothing."""
    ends = [ended("workflow.a", Outcome.FAIL), ended("workflow.b", outcome, message="law 7: x\nwhy")]
    found = judge.mutant_faults([mutant("Torn", "workflow.a", "workflow.b")], ends)

    assert found == [f"(b) Torn survives workflow.b: {outcome}: why"]


def test_a_mutant_needs_killers_that_exist() -> None:
    """None at all, or one of another role, is a fault."""
    found = judge.mutant_faults([mutant("Free"), mutant("Torn", "train.a")], [])

    assert found == ["(b) Free declares no killer", "(b) Torn declares train.a, which is no check of a workflow"]


def test_a_reference_passes_everything_it_claims() -> None:
    """A skip by claim is fine; an inconclusive check is not."""
    ends = [
        ended("workflow.a", Outcome.PASS, of=""),
        ended("workflow.b", Outcome.SKIP, of=""),
        ended("workflow.c", Outcome.INCONCLUSIVE, of="", message="no witness"),
        ended("workflow.d", Outcome.PASS, of="Torn"),
    ]

    assert judge.reference_faults(ends) == ["(a) workflow/toy does not pass workflow.c: inconclusive: no witness"]


def test_every_check_needs_a_mutant_it_kills(make: Any) -> None:
    """A check that kills nothing may be checking nothing."""
    checks = [make("a"), make("b")]

    assert judge.killerless(checks, [mutant("Torn", "workflow.a")]) == ["(c) workflow.b kills no mutant"]


def test_every_incident_needs_a_mutant() -> None:
    """And a mutant names a row there is."""
    found = judge.rowless(["torn", "stale"], [mutant("A", row="torn"), mutant("B", row="other")])

    assert found == ["(e) no mutant stands for the incident stale", "(e) B names the row other, which is none"]


def test_the_matrix_comes_back_as_written(tmp_path: Path) -> None:
    """Killers sorted; what a full run found is kept for mutants that were not in this one."""
    path = tmp_path / "matrix.json"
    first = renewed({}, [mutant("A", "b", "a"), mutant("B", "a")], {"A": {"b", "a", "c"}})
    write_matrix(first, path)

    assert read_matrix(path) == first
    assert first["A"] == Line(of="workflow/toy", declared=("a", "b"), all=("a", "b", "c"))
    assert first["B"].all is None
    assert renewed(first, [mutant("A", "a")], {})["A"] == Line(of="workflow/toy", declared=("a",), all=("a", "b", "c"))
    write_matrix({}, path)
    assert read_matrix(path) == {}


def test_a_matrix_out_of_step_is_told() -> None:
    """New, gone, other killers, and what a full run found otherwise."""
    matrix = renewed({}, [mutant("A", "a"), mutant("Gone", "a"), mutant("B", "a")], {"A": {"a", "b"}})
    found = differences(matrix, [mutant("A", "a"), mutant("B", "a", "c"), mutant("New", "a")], {"A": {"a", "d"}})

    assert found == [
        "matrix.json has Gone, which is no mutant any more",
        "A is killed by d now, and was not",
        "A is not killed by b any more",
        "matrix.json has other killers declared for B",
        "matrix.json lacks New",
    ]


def test_references_are_cut_into_pieces(make: Any) -> None:
    """So that several processes share a long one; no level above 4, no more ranks than given."""
    checks = [make(f"a.n{number:03d}") for number in range(CHUNK + 1)]
    checks += [make("b.numbers", level=Level.NUMBERS), make("b.ranks", ranks=2)]
    items = reference_items([Locator(role="workflow", name="toy")], {"workflow": checks})

    assert [len(item.checks) for item in items] == [CHUNK, 1]


def test_a_mutant_is_tried_on_its_killers_or_on_everything(make: Any) -> None:
    """Killers first; its ranks are those its killers need."""
    checks = {"workflow": [make("a"), make("b", ranks=2), make("c"), make("d", ranks=4)]}
    torn = mutant("Torn", "workflow.b")
    (short,), (full,) = mutant_items([torn], checks), mutant_items([torn], checks, full=True)

    assert (short.checks, short.ranks) == (("workflow.b",), 2)
    assert full.checks == ("workflow.b", "workflow.a", "workflow.c")


def test_parts_are_everything_together() -> None:
    """Each piece of the work is in one of N parts; what is no part is refused."""
    work = list(range(11))
    for number in (1, 2, 3):
        steps = [_part(f"{place}/{number}") for place in range(1, number + 1)]
        assert sorted(piece for begin, step in steps for piece in work[begin::step]) == work
    assert _part("") == (0, 1)
    for wrong in ("3/2", "0/2", "1/0", "half", "1/2/3"):
        with pytest.raises(ConfigError, match="is no part"):
            _part(wrong)


def test_figures_need_no_mutant(make: Any) -> None:
    """Level 5 is told and judges nobody: the other checks need a mutant each."""
    checks = [make("workflow.a"), make("workflow.b.figure", level=Level.NUMBERS)]

    assert judge.killerless(checks, []) == [f"(c) {checks[0].id} kills no mutant"]


def test_the_references_include_two_of_every_role() -> None:
    """The second one keeps the first honest."""
    roles = [locator.role for locator in REFERENCES]

    assert all(roles.count(role) >= 2 for role in set(roles))
    found, absent = present([Locator(role="scheduler", name="local"), Locator(role="train", name="no_such_thing")])
    assert [one.name for one in found] == ["local"]
    assert absent[0].startswith("train/no_such_thing is left out")


CATALOGUE = """
import os, signal, threading
from areal_conformance.check import Check
from areal_conformance.outcome import Result

def check(name):
    return Check(id=f"workflow.{name}", body=print, level=1, law=7, spec="s", title="t", tier="core", deadline_s=0.1)

class Session:
    def __init__(self, item):
        self.item = item
    def run(self, check):
        print("noise on standard output")
        name = check.id.partition(".")[2]
        if name == "dies":
            os._exit(7)
        if name == "hangs":
            signal.pause()
        if name == "leaks":
            threading.Thread(target=threading.Event().wait, name="areal-conformance", daemon=True).start()
        return Result(check=check.id, outcome="fail" if self.item.mutant else "pass", message=str(os.getpid()))
    def close(self):
        pass

class Toy:
    def checks(self):
        return {f"workflow.{n}": check(n) for n in ("a", "b", "dies", "hangs", "leaks")}
    def session(self, item):
        if item.mutant == "Unbuildable":
            raise RuntimeError("no such engine")
        return Session(item), 1.0

TOY = Toy()
"""


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def began(self, item: Item) -> None:
        assert item.checks

    def ended(self, item: Item, ends: list[Ended]) -> None:
        self.items.append(item.label)


Crew = Callable[..., list[Ended]]


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Return a function that lets worker processes do items on a catalogue of the test's own."""
    (tmp_path / "toy_catalogue.py").write_text(CATALOGUE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))

    def done(*names: Iterable[str], jobs: int = 1, limit_s: float | None = None, mutants: bool = True) -> list[Ended]:
        items = [
            Item(
                role="workflow",
                name="toy",
                ranks=1,
                checks=tuple(f"workflow.{name}" for name in checks),
                mutant=f"M{number}" if mutants else "",
            )
            for number, checks in enumerate(names)
        ]
        heard = Heard()
        ends = do_all(items, jobs=jobs, listener=heard, place="toy_catalogue:TOY", limit_s=limit_s)
        assert len(heard.items) == len(items)
        return ends

    return done


def words(ends: Iterable[Ended]) -> dict[tuple[str, str], str]:
    """Return (mutant, check) -> outcome."""
    return {(end.item.mutant, end.check.partition(".")[2]): str(end.outcome) for end in ends}


def test_a_crew_does_everything(crew: Crew) -> None:
    """Also in two processes; what checks print is no answer."""
    expected = {("M0", "a"): "fail", ("M0", "b"): "fail", ("M1", "a"): "fail"}

    assert words(crew(("a", "b"), ("a",), jobs=2)) == expected


def test_a_process_is_used_again_unless_something_was_left_in_it(crew: Crew) -> None:
    """A thread that still runs a broken backend is not taken along."""
    ends = {end.check: end.message for end in crew(("a",), ("b",), ("leaks",))}
    assert ends["workflow.a"] == ends["workflow.b"] == ends["workflow.leaks"]

    ends = {end.check: end.message for end in crew(("leaks",), ("a",))}
    assert ends["workflow.a"] != ends["workflow.leaks"]


def test_a_mutant_that_dies_costs_its_own_checks_only(crew: Crew) -> None:
    """What it did not get to is an error, and the next item has a fresh process."""
    ends = crew(("a", "dies", "b"), ("a",))

    assert words(ends) == {("M0", "a"): "fail", ("M0", "dies"): "error", ("M0", "b"): "error", ("M1", "a"): "fail"}
    assert [end.message for end in ends if end.check == "workflow.dies"] == ["the process ended with 7"]


def test_a_mutant_that_hangs_cannot_stop_the_self_test(crew: Crew) -> None:
    """Its process is killed at the limit."""
    ends = crew(("hangs", "b"), ("a",), limit_s=3.0)

    assert words(ends) == {("M0", "hangs"): "error", ("M0", "b"): "error", ("M1", "a"): "fail"}


def test_a_target_that_cannot_be_made_is_an_error(crew: Crew, tmp_path: Path) -> None:
    """Not a kill."""
    item = Item(role="workflow", name="toy", ranks=1, checks=("workflow.a",), mutant="Unbuildable")
    (end,) = do_all([item], jobs=1, listener=Heard(), place="toy_catalogue:TOY")

    assert end.outcome is Outcome.ERROR
    assert "no such engine" in end.message


def test_what_a_check_is_missing_is_seen(make: Any) -> None:
    """The facts used above are those of a real check."""
    assert isinstance(make("a"), Check)
    assert sys.executable
