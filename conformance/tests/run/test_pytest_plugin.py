"""The pytest plugin: inert unless asked, one item a check, and a verdict that counts what did not run."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_conformance.check import Tier
from areal_conformance.outcome import Result
from areal_conformance.run.record import Record, read_record

pytest_plugins = ("pytester",)

ARGUMENTS = ("-p", "no:cacheprovider", "-p", "areal_conformance.plugin", "--pyargs", "areal_conformance")
ASKED = ("--areal-backend=toy", "--areal-role=workflow")


class Outer:
    """Runs pytest inside a test, and reads the report it wrote."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def run(self, *words: str, **how: bool) -> tuple[pytest.RunResult, Record]:
        report = self.pytester.path / "report"
        result = self.pytester.runpytest_inprocess(*ARGUMENTS, *ASKED, f"--areal-report={report}", *words, **how)
        return result, read_record(report)


@pytest.fixture
def outer(pytester: pytest.Pytester) -> Outer:
    """Return a way to run pytest inside the test."""
    return Outer(pytester)


@pytest.fixture(autouse=True)
def only_our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the plugins installed here: pytest would rewrite them anew for every run inside a test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_without_a_backend_it_skips_and_says_what_to_give(pytester: pytest.Pytester) -> None:
    """Nothing is imported, collected or checked that was not asked for."""
    result = pytester.runpytest_inprocess("-rs", *ARGUMENTS)

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*give --areal-backend NAME*"])


def test_the_plugin_is_inert_in_another_projects_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its entry point, it adds no test, no line and no import beyond itself."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(
        """
        import sys
        def test_one():
            extra = [name for name in sys.modules if name.startswith("areal_")]
            assert set(extra) <= {"areal_conformance", "areal_conformance.plugin"}, extra
        """
    )
    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=1)
    assert "areal conformance" not in result.stdout.str()


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    """Every pytest run of the host pays for this import."""
    code = "import sys; import areal_conformance.plugin; print(*(m for m in sys.modules if m.partition('.')[0] in {}))"
    heavy = ("areal_core", "areal_conformance", "pytest", "attrs", "hypothesis", "torch", "rich", "cyclopts")
    ended = subprocess.run([sys.executable, "-c", code.format(heavy)], capture_output=True, text=True, check=True)

    assert ended.stdout.split() == ["areal_conformance", "areal_conformance.plugin"]


def test_one_item_a_check_named_by_its_id(outer: Outer, make: Any, offer: Any) -> None:
    """In the order of levels, then ids."""
    offer(make("b.late", level=3), make("a.one"), make("b.two"))
    result = outer.pytester.runpytest_inprocess("--collect-only", "-q", *ARGUMENTS, *ASKED)

    found = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    assert found == ["workflow.a.one", "workflow.b.two", "workflow.b.late"]


def test_success(outer: Outer, make: Any, offer: Any) -> None:
    """Every check passes; the report says by which command."""
    offer(make("a.one"), make("a.two", "skip", "not claimed: x", tier=Tier.EXTENDED))
    result, record = outer.run()

    assert (result.ret, record.verdict) == (0, "success")
    assert record.line == "2 checks in profile, 1 ran: 1 pass; 1 skipped by claim; 0 missing."
    assert record.command.startswith("pytest ")
    result.stdout.fnmatch_lines(["2 checks in profile, 1 ran*", "verdict: success"])


def test_every_outcome_has_its_own_word(outer: Outer, make: Any, offer: Any) -> None:
    """What pytest has no word for is a skip that says so."""
    ends = ("pass", "fail", "error", "inconclusive", "skip")
    offer(*(make(f"a.{end}", end, f"because of {end}") for end in ends))
    result, record = outer.run("-rs")

    result.assert_outcomes(passed=1, failed=2, skipped=2)
    result.stdout.fnmatch_lines(["*Remedies, in this order: fix the*", "*inconclusive: because of inconclusive*"])
    assert {row.id: row.outcome for row in record.checks} == {f"workflow.a.{end}": end for end in ends}
    assert (record.verdict, result.ret) == ("failure", 1)


def test_a_failure_shows_the_message_and_no_traceback(outer: Outer, make: Any, offer: Any) -> None:
    """A traceback would show the suite."""
    offer(make("a.one", "fail", "law 7: All.\nexpected 3, got 4"))
    result, _ = outer.run()

    result.stdout.fnmatch_lines(["fail: Claim of a.one.", "law 7: All.", "expected 3, got 4"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*CheckFailed*")


def test_deselecting_everything_is_incomplete(outer: Outer, make: Any, offer: Any) -> None:
    """`-k nothing` is not a success."""
    offer(make("a.one"), make("a.two"))
    result, record = outer.run("-k", "nothing_is_called_so")

    assert record.verdict == "incomplete"
    assert record.line == "2 checks in profile, 0 ran; 0 skipped by claim; 2 missing."
    assert result.ret != 0


def test_deselecting_one_is_incomplete(outer: Outer, make: Any, offer: Any) -> None:
    """Green must mean that all that should run, ran."""
    offer(make("a.one"), make("a.two"))
    result, record = outer.run("-k", "a.one")

    assert (record.verdict, result.ret) == ("incomplete", 1)


def test_stopping_at_the_first_failure_is_a_failure_with_the_rest_missing(outer: Outer, make: Any, offer: Any) -> None:
    """`-x` leaves rows without an outcome."""
    offer(make("a.one", "fail", "no"), make("a.two"), make("a.three"))
    _, record = outer.run("-x")

    assert record.verdict == "failure"
    assert "2 missing" in record.line


def test_a_check_that_ends_pytest_leaves_an_incomplete_report(outer: Outer, make: Any, offer: Any) -> None:
    """Whatever interrupts a run, the report is written and says what is missing."""

    def interrupt(_bench: object) -> None:
        raise KeyboardInterrupt

    offer(make("a.one"), attrs.evolve(make("a.two"), body=interrupt))
    _, record = outer.run(no_reraise_ctrlc=True)

    assert record.verdict == "incomplete"
    assert record.line == "2 checks in profile, 1 ran: 1 pass; 0 skipped by claim; 1 missing."


def test_a_pinned_check_that_vanished_is_incomplete(outer: Outer, make: Any, offer: Any) -> None:
    """A module that is not found any more does not make a report greener."""
    here, gone = make("a.here"), make("a.gone")
    offer(here, pinned=[here, gone])
    _, record = outer.run()

    assert record.verdict == "incomplete"


def test_only_the_checks_asked_for(outer: Outer, make: Any, offer: Any) -> None:
    """The profile stays whole."""
    offer(make("a.one"), make("a.two"))
    _, record = outer.run("--areal-check=workflow.a.two")

    assert [row.outcome for row in record.checks] == ["not-run", "pass"]
    assert record.verdict == "incomplete"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--areal-check=workflow.a.tow",), "*did you mean workflow.a.two?*"),
        (("--areal-ledger=none.toml",), "*the ledger none.toml cannot be read*"),
        (("--areal-level=7",), "*there is no level 7*"),
        (("--areal-pair=a+b",), "*2 targets are named*"),
    ],
)
def test_bad_input_is_told_before_any_check(
    pytester: pytest.Pytester, make: Any, offer: Any, words: tuple[str, ...], told: str
) -> None:
    """Usage errors, not failures."""
    offer(make("a.one"), make("a.two"))
    result = pytester.runpytest_inprocess(*ARGUMENTS, *ASKED, *words)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])


def test_the_ledger_reaches_the_report(outer: Outer, make: Any, offer: Any) -> None:
    """Known, stale and hanging, each in the verdict."""
    entry = (
        '[[known]]\ncheck = "workflow.{}"\nkind = "{}"\nmatch = "3"\nreason = "r"\nissue = "i"\nexpires = 2999-01-01\n'
    )
    file = outer.pytester.path / "known.toml"
    hanging = make("a.hang", "fail", "would hang")
    offer(make("a.one", "fail", "got 3"), make("a.two"), hanging)

    file.write_text(entry.format("a.one", "bug") + entry.format("a.hang", "hang"), encoding="utf-8")
    result, record = outer.run(f"--areal-ledger={file}")
    assert (record.verdict, result.ret) == ("partial", pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(["*only success ends with 0*"])
    assert [row.outcome for row in record.checks] == ["not-run", "known-fail", "pass"]
    result.assert_outcomes(passed=1, xfailed=1, skipped=1)

    file.write_text(entry.format("a.two", "bug"), encoding="utf-8")
    result, record = outer.run(f"--areal-ledger={file}")
    assert (record.verdict, result.ret) == ("failure", 1)


def test_warnings_as_errors_of_the_host_do_not_fail_a_backend(outer: Outer, make: Any, offer: Any) -> None:
    """How strict the host is with its own code is not the contract."""

    def warning(_bench: object) -> object:
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
        return Result(check="workflow.a.one", outcome="pass")

    offer(attrs.evolve(make("a.one"), body=warning))
    _, record = outer.run("-W", "error")

    assert record.verdict == "success"


@pytest.mark.slow
def test_processes_of_xdist_make_one_report(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows travel with pytest's own reports. The checks are the shipped ones of the scheduler, static only."""
    pytest.importorskip("xdist")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    report = tmp_path / "report"
    words = ("--areal-backend=local", "--areal-role=scheduler", "--areal-level=0", f"--areal-report={report}")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--pyargs", "areal_conformance", *words)

    assert "0 missing" in read_record(report).line
