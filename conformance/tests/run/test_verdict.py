"""The verdict, rule by rule; nothing that ran comes first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from areal_conformance.check import Tier
from areal_conformance.outcome import Outcome
from areal_conformance.run.record import Row
from areal_conformance.run.verdict import EXIT_CODES, Verdict, judge, standings

Rows = Callable[..., Row]


def test_nothing_in_the_profile_is_incomplete() -> None:
    """No check ran: nothing is known, and nothing is never a success."""
    found = judge([])

    assert Verdict.INCOMPLETE is found.verdict
    assert found.line == "0 checks in profile, 0 ran; 0 skipped by claim; 0 missing."


def test_nothing_that_ran_is_incomplete(row: Rows) -> None:
    """A profile of which every check was deselected is incomplete."""
    found = judge([row("a.one", Outcome.NOT_RUN), row("a.two", Outcome.NOT_RUN)])

    assert Verdict.INCOMPLETE is found.verdict
    assert found.line == "2 checks in profile, 0 ran; 0 skipped by claim; 2 missing."


def test_everything_skipped_by_claim_is_incomplete(row: Rows) -> None:
    """A backend that claims nothing and is checked for nothing has shown nothing."""
    found = judge([row("a.one", Outcome.SKIP, tier=Tier.EXTENDED)])

    assert Verdict.INCOMPLETE is found.verdict


def test_all_pass_is_success(row: Rows) -> None:
    """Every check of the profile passed."""
    assert Verdict.SUCCESS is judge([row("a.one"), row("a.two")]).verdict


@pytest.mark.parametrize("ends", [Outcome.FAIL, Outcome.ERROR, Outcome.UNEXPECTED_PASS])
def test_one_failing_check_is_failure(row: Rows, ends: Outcome) -> None:
    """Whatever else is missing: something is known to be wrong."""
    rows = [row("a.one"), row("a.two", ends, tier=Tier.EXTENDED), row("a.three", Outcome.NOT_RUN)]

    assert Verdict.FAILURE is judge(rows).verdict


def test_one_missing_outcome_is_incomplete(row: Rows) -> None:
    """Missing wins over what would be partial."""
    rows = [row("a.one"), row("a.two", Outcome.KNOWN_FAIL, known="bug"), row("a.three", Outcome.NOT_RUN)]

    assert Verdict.INCOMPLETE is judge(rows).verdict


@pytest.mark.parametrize("ends", [Outcome.KNOWN_FAIL, Outcome.INCONCLUSIVE])
def test_a_core_check_that_is_no_pass_is_partial(row: Rows, ends: Outcome) -> None:
    """Core means everybody."""
    assert Verdict.PARTIAL is judge([row("a.one"), row("a.two", ends)]).verdict


def test_a_core_check_that_is_skipped_does_not_lower(row: Rows) -> None:
    """It is about what the backend does not do, as its adapter says, and is shown not to do."""
    assert Verdict.SUCCESS is judge([row("a.one"), row("a.two", Outcome.SKIP)]).verdict


@pytest.mark.parametrize("ends", [Outcome.SKIP, Outcome.KNOWN_FAIL, Outcome.INCONCLUSIVE])
def test_an_extended_check_that_is_no_pass_does_not_lower(row: Rows, ends: Outcome) -> None:
    """What is optional may be absent."""
    assert Verdict.SUCCESS is judge([row("a.one"), row("a.two", ends, tier=Tier.EXTENDED)]).verdict


def test_flaky_caps_even_where_it_passed(row: Rows) -> None:
    """A pass that may be a failure tomorrow is not a success."""
    rows = [row("a.one"), row("a.two", Outcome.PASS, tier=Tier.EXTENDED, known="flaky")]

    assert Verdict.PARTIAL is judge(rows).verdict


def test_a_declared_hang_is_told_and_caps(row: Rows) -> None:
    """It is not missing: the ledger says why it was not run."""
    found = judge([row("a.one"), row("a.two", Outcome.NOT_RUN, tier=Tier.EXTENDED, known="hang")])

    assert Verdict.PARTIAL is found.verdict
    expected = "2 checks in profile, 1 ran: 1 pass; 0 skipped by claim; 1 not run as the ledger says; 0 missing."
    assert expected == found.line


def test_provisional_checks_are_apart(row: Rows) -> None:
    """They are told, and change nothing."""
    rows = [row("a.one"), row("a.new", Outcome.FAIL, provisional=True), row("a.newer", provisional=True)]
    found = judge(rows)

    assert Verdict.SUCCESS is found.verdict
    assert found.line.startswith("1 check in profile, 1 ran: 1 pass;")
    assert found.line.endswith("Apart, without effect: 2 provisional: 1 fail, 1 pass.")


def test_line_one_gives_the_denominators(row: Rows) -> None:
    """As the design wrote it."""
    rows = [row(f"a.n{number}") for number in range(62)]
    rows += [row(f"b.n{number}", Outcome.KNOWN_FAIL, known="bug") for number in range(2)]
    rows += [row(f"c.n{number}", Outcome.SKIP, tier=Tier.EXTENDED) for number in range(7)]

    expected = "71 checks in profile, 64 ran: 62 pass, 2 known-fail; 7 skipped by claim; 0 missing."
    assert expected == judge(rows).line


def test_line_one_says_what_is_outside_the_profile(row: Rows) -> None:
    """A level or ranks that were not asked for are no secret."""
    line = judge([row("a.one")], {"--level 4": 9, "--ranks 2": 3}).line

    assert line.endswith("0 missing. Not in the profile: 9 need --level 4, 3 need --ranks 2.")


def test_standings_are_core_and_each_ability(row: Rows) -> None:
    """An ability of which every check was skipped has no standing."""
    rows = [
        row("a.one"),
        row("b.one", Outcome.FAIL, tier=Tier.EXTENDED, claims=("pause.keep",)),
        row("c.one", Outcome.SKIP, tier=Tier.EXTENDED, claims=("lora",)),
    ]
    found = {one.name: one.verdict for one in standings("workflow", rows, {"pause.keep", "lora"})}

    assert found == {"workflow-core": "success", "workflow-extended: pause.keep": "failure"}


def test_the_success_of_a_refusal_is_no_success_of_the_ability(row: Rows) -> None:
    """What is not claimed and is refused stands as refused; what works all the same stands as that."""
    works = ("'c' works but is not claimed: claim it",)
    rows = [
        row(f"{name}.one", tier=Tier.EXTENDED, claims=(name,), notes=notes)
        for name, notes in {"a": (), "b": ("tolerance 0.1",), "c": works}.items()
    ]
    rows.append(row("d.one", Outcome.FAIL, tier=Tier.EXTENDED, claims=("d",)))

    found = {one.name.partition(": ")[2]: one.verdict for one in standings("workflow", rows, {"a"})}
    assert found == {"a": "success", "b": "refused, as it says", "c": "works, and is not claimed", "d": "failure"}


def test_every_verdict_has_an_exit_code_of_its_own() -> None:
    """2 is bad input."""
    assert {0, 1, 3, 4} == set(EXIT_CODES.values())
    assert set(Verdict) == set(EXIT_CODES)
