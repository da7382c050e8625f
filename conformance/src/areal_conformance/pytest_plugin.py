"""What pytest does with a run: one item a check, and the record of the run when it ends.

Knows: pytest's hooks.
Does not know: how a run is prepared (`run.plan`), made (`session`) or judged (`run.verdict`).
"""

from __future__ import annotations

import gc
import shlex
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_conformance.check import Check
from areal_conformance.deadline import MOST
from areal_conformance.outcome import Outcome, Result
from areal_conformance.rank_pool.fork_server import fork_server
from areal_conformance.run import suite as suites
from areal_conformance.run.asked import Asked
from areal_conformance.run.journal import Journal
from areal_conformance.run.ledger import REMEDIES
from areal_conformance.run.plan import Plan, closed, make_plan
from areal_conformance.run.record import Record, Row, plain, row_from, row_of
from areal_conformance.run.suite import Runs, Suite
from areal_conformance.run.verdict import FAILING, Verdict
from areal_conformance.runner import GRACE_S
from areal_conformance.session import CLOSE_S
from areal_core.contract.errors import ArealError

COLLECTED = "test_conformance.py"
SLACK_S = 30.0
"""What a busy machine may add to the limits of a check before it is taken for hanging for good."""
_PROPERTY = "areal_conformance"
_STASH = pytest.StashKey["RunPlugin"]()


class CheckFailed(Exception):
    """A check ended in an outcome that fails the run; the message is all there is to show."""


def start_run(config: pytest.Config) -> None:
    """Prepare the run that the options ask for.

    Raises:
        pytest.UsageError: what was asked for cannot be run; before any check.
    """
    path = config.getoption("areal_journal")
    journal = Journal(Path(path)) if path else None
    suite = suites.shipped()
    try:
        asked = _asked(config)
        command = config.getoption("areal_command") or shlex.join(["pytest", *config.invocation_params.args])
        plan = make_plan(asked, suite, now=datetime.now().astimezone(), command=command)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        if journal is not None:
            journal.write(refused=told)
        if isinstance(error, ArealError):
            raise pytest.UsageError(told) from error
        raise
    if journal is not None:
        journal.write(opened=plan.record, planned=[check.id for check in plan.checks], jobs=plan.jobs)
    run = RunPlugin(plan, suite, journal, config)
    config.stash[_STASH] = run
    config.pluginmanager.register(run, "areal-conformance-run")


def _asked(config: pytest.Config) -> Asked:
    option = config.getoption
    return Asked(
        backend=option("areal_backend"),
        role=option("areal_role"),
        pair=option("areal_pair"),
        mutant=option("areal_mutant"),
        device=option("areal_device"),
        ranks=option("areal_ranks"),
        level=option("areal_level"),
        only=option("areal_check"),
        imports=option("areal_import"),
        ledger=option("areal_ledger"),
        bounds=option("areal_bounds"),
        failed_in=option("areal_only_failed"),
        jobs=option("areal_jobs"),
        patience=option("areal_patience"),
        contract=option("areal_contract"),
        zoo=option("areal_zoo"),
    )


class RunPlugin:
    """One run. Lives as long as pytest's session."""

    def __init__(self, plan: Plan, suite: Suite, journal: Journal | None, config: pytest.Config) -> None:
        self.plan = plan
        self.record: Record | None = None
        self._suite = suite
        self._journal = journal
        self._session: Runs | None = None
        self._rows: dict[str, Row] = {}
        self._began = time.perf_counter()
        self._again = ""
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Put the checks in the place of the module that only says what to give."""
        if module_path != Path(__file__).with_name(COLLECTED):
            return None
        return CheckFile.from_parent(parent, path=module_path)

    def claims(self, check: Check) -> bool:
        """Whether the check is this process's to make: among several the first that asks has it, for good."""
        folder = self._config.getoption("areal_claims")
        if folder:
            try:
                Path(folder, check.id).touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def make(self, check: Check) -> Row:
        """Make one check, and hold what came to the ledger."""
        patience = self.plan.target.adapter.patience
        if self._journal is not None:
            times = MOST if self.plan.jobs > 1 else 1.0  # starved by others both ends know of, by one another one does
            limit = 2 * (check.deadline_s + CLOSE_S) * patience * times + GRACE_S + SLACK_S  # it may be made twice
            self._journal.write(began=check.id, limit_s=limit)
        if self.plan.ledger.hangs(check.id) is not None:
            result = Result(check=check.id, outcome=Outcome.NOT_RUN)
        else:
            if self._session is None:
                if self.plan.target.role == "train" and any(one.ranks > 1 for one in self.plan.checks):
                    fork_server()  # it gets ready while checks of one rank run
                if self._journal is not None:
                    gc.freeze()  # a process of its own: libraries stay, and collections need not walk them
                self._session = self._suite.session(self.plan.target)
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # a host's filterwarnings = error must not fail a backend
                result = self._session.run(check)
        judged, kind = self.plan.ledger.judge(result)
        return attrs.evolve(
            row_of(check),
            outcome=judged.outcome,
            message=judged.message,
            seconds=round(judged.seconds, 4),
            notes=judged.notes,
            numbers=dict(judged.numbers),
            known=kind,
        )

    def stops_behind(self, check: Check) -> bool:
        """Whether the run has to go on in another process: a check was given up, and somebody starts another one."""
        self._again = check.id if self._journal is not None and self._session and self._session.poisoned else ""
        return bool(self._again)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a row in, also from another process of pytest-xdist."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                row = row_from(value)  # type: ignore[arg-type]  # a property is typed as what JUnit's XML can hold
                self._rows[row.id] = row
                if self._journal is not None:
                    self._journal.write(ended=row)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the target, judge the run, and write the report."""
        if self._session is not None:
            self._session.close()
        if self._config.option.collectonly or hasattr(self._config, "workerinput"):
            return
        self.record = closed(self.plan.record, self._rows.values(), time.perf_counter() - self._began)
        folder = self._config.getoption("areal_report")
        if folder:
            from areal_conformance.report import write_reports

            write_reports(self.record, Path(folder))
        if self.record.verdict != Verdict.SUCCESS and session.exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._journal is not None:
            self._journal.write(again=self._again) if self._again else self._journal.write(closed=True)
            self._journal.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say line one, the verdict, and what can be done."""
        if self.record is None:
            return
        terminalreporter.section("areal conformance")
        terminalreporter.line(self.record.line)
        terminalreporter.line(f"verdict: {self.record.verdict}")
        if self.record.verdict == Verdict.PARTIAL:
            terminalreporter.line("A core check is no pass, so pytest ends with 1: only success ends with 0.")
        if any(row.outcome in FAILING for row in self.record.checks):
            terminalreporter.line(REMEDIES)


class CheckFile(pytest.File):
    """Collects the checks of the run."""

    def collect(self) -> Iterator[pytest.Item]:
        """Return one item a check, in the order of levels."""
        for check in self.config.stash[_STASH].plan.checks:
            yield CheckItem.from_parent(self, name=check.id, check=check)


class CheckItem(pytest.Item):
    """One check; its name is the check's id."""

    def __init__(self, *, check: Check, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]  # what `from_parent` passes on
        self.check = check

    def runtest(self) -> None:
        """Make the check and tell pytest how it ended."""
        if not self.config.stash[_STASH].claims(self.check):
            return
        row = self.config.stash[_STASH].make(self.check)
        self.user_properties.append((_PROPERTY, plain(row)))
        if self.config.stash[_STASH].stops_behind(self.check):
            self.session.shouldstop = f"{self.check.id} was given up; a fresh process goes on"
        if row.outcome in FAILING:
            raise CheckFailed(f"{row.outcome}: {row.title}\n{row.message}")
        if row.outcome is Outcome.KNOWN_FAIL:
            pytest.xfail(row.message)
        if row.outcome in (Outcome.SKIP, Outcome.INCONCLUSIVE, Outcome.NOT_RUN):
            pytest.skip(row.message if row.outcome is Outcome.SKIP else f"{row.outcome}: {row.message}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Show the message alone: a traceback would show the suite, not the backend. Any: pytest's own styles."""
        if isinstance(excinfo.value, CheckFailed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where pytest says the item is."""
        return self.path, None, self.name
