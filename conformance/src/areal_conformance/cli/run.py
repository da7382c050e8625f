"""`areal conformance run`: make the checks of a target in processes of their own, and say what came.

Knows: the order of a run as a person sees it, and its exit codes.
Does not know: how checks are made; that is done in the child (`pytest_plugin`).
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_conformance.cli.child import INTERRUPTED, WORTH, arguments_of, environment_of, follow
from areal_conformance.cli.live import Live
from areal_conformance.outcome import DISTANCE, Outcome
from areal_conformance.report import write_reports
from areal_conformance.report.parts import FOOTER, distance, figures
from areal_conformance.run.asked import LEVEL, Asked, names_one_target
from areal_conformance.run.journal import Story
from areal_conformance.run.ledger import REMEDIES
from areal_conformance.run.plan import closed
from areal_conformance.run.record import Record, Row
from areal_conformance.run.verdict import EXIT_CODES, FAILING, Verdict
from areal_conformance.spec import link
from areal_core.contract.errors import ArealError, StorageError

BAD_INPUT = 2
Word = Annotated[str, Parameter(show_default=False)]
Several = Parameter(consume_multiple=True, negative=(), show_default=False)
MAX_ALIKE = 3
"""So many failures in the same words are told one by one; more are told once."""


def run(
    *,
    backend: Word = "",
    role: Word = "",
    pair: Word = "",
    device: str = "cpu",
    ranks: Annotated[int, Parameter(show_default=False)] = 0,
    level: int = LEVEL,
    report: Path | None = None,
    check: Annotated[tuple[str, ...], Several] = (),
    imports: Annotated[tuple[Path, ...], Parameter(name="--import"), Several] = (),
    only_failed: Path | None = None,
    ledger: Path | None = None,
    bounds: Path | None = None,
    patience: float = 1.0,
    contract: Word = "",
    zoo: Annotated[int, Parameter(show_default=False)] = 0,
    jobs: Annotated[int, Parameter(show_default=False)] = 0,
    mutant: Word = "",
) -> int:
    """Check a backend and report the verdict.

    Exit codes: 0 success, 1 failure, 2 bad input, 3 partial, 4 incomplete.

    Args:
        backend: Name of an installed plugin: an engine, scheduler, transport, workflow, endpoint, renderer or device.
        role: Needed if the name has several roles: train, infer, scheduler, transport, workflow, endpoint, renderer or
            device.
        pair: Two engines together, as TRAIN+INFER.
        device: Kind of device: cpu, cuda, ...
        ranks: Maximum number of ranks, 1 by default; checks that need more are not in the profile.
        level: 0 static, 1 single, 2 distributed, 3 loop, 4 faults, 5 numbers; levels above are not in the profile.
        report: Write report.json, report.md, report.html and badge.svg into this folder.
        check: Run only these checks, with * for any part; the verdict is then incomplete at best.
        imports: Register this .py file first, or these.
        only_failed: Run only the checks that did not pass in this report.json, or its folder.
        ledger: Known failures; conformance.toml in the plugin's package if not given.
        bounds: What figures of level 5 are held to, as toml, instead of what the plugin's adapter promises of them.
        patience: Multiply every deadline by this: a slow or busy machine.
        contract: Check only rules of this version of the role's contract, X.Y, instead of this core's.
        zoo: Draw so many models of each family, instead of 3 to 5; 30 are every pair of what config.json can say.
        jobs: Processes that make checks at once. If not given, one for each core up to 4, where checks are enough; one
            alone on accelerators, at level 5, and for a backend whose adapter says `slow_start`.
        mutant: Check this deliberately broken backend instead.
    """
    console = Console(soft_wrap=True)
    try:
        asked = Asked(
            backend=backend,
            role=role,
            pair=pair,
            mutant=mutant,
            device=device,
            ranks=ranks,
            level=level,
            only=check,
            imports=tuple(str(path) for path in imports),
            ledger=str(ledger.resolve()) if ledger else "",
            bounds=str(bounds.resolve()) if bounds else "",
            failed_in=str(only_failed.resolve()) if only_failed else "",
            patience=patience,
            contract=contract,
            zoo=zoo,
            jobs=jobs,
        )
        names_one_target(asked)
        if report is not None:
            open_folder(report)
    except ArealError as error:
        return _refused(f"{type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory(prefix="areal-conformance-run-") as scratch:
        began = time.perf_counter()
        arguments = arguments_of(asked, shlex.join(["areal", *sys.argv[1:]]))
        worth = 1 if jobs else WORTH
        with Live(console) as live:
            story, ended = follow(arguments, environment_of(os.environ), Path(scratch), live.tell, worth)
    if story.record is None and story.refused:
        return _refused(story.refused)
    if story.record is None:
        return _refused(f"the run could not be prepared: {ended or 'the process ended early'}\n{story.said}")
    record = _closed(story, ended, time.perf_counter() - began)
    _tell(console, record, story.said if ended != INTERRUPTED else "")
    if report is not None:
        for path in write_reports(record, report):
            console.print(f"written: {path}", markup=False, highlight=False)
    return EXIT_CODES[Verdict(record.verdict)]


def _closed(story: Story, ended: str, seconds: float) -> Record:
    """Judge what the child told, also where it ended early."""
    assert story.record is not None
    notes = list(story.notes)
    if ended == INTERRUPTED:
        notes.append(f"{ended}, while {story.running} ran" if story.running else ended)
    elif ended:
        notes.append(f"a process that made checks failed: {ended}")
    return closed(story.record, story.rows, seconds, notes)


def _tell(console: Console, record: Record, said: str) -> None:
    def line(text: str = "", style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for alike in _alike(row for row in record.checks if _wants_telling(row)):
        line()
        _tell_row(line, alike[0])
        if len(alike) > 1:
            line(f"  The same message from {len(alike) - 1} more: {', '.join(row.id for row in alike[1:])}")
    noted = [*record.notes, *(f"{row.id}: {note}" for row in record.checks for note in row.notes)]
    if noted:
        line()
        for note in noted:
            line(f"note: {note}", "dim")
    if said:
        line(f"\nthe last output of the process:\n{said}", "dim")
    line()
    line(record.line)
    if far := distance(record):
        line(f"{DISTANCE}: {far}")
    for _, name, value in figures(record):
        line(f"{name}: {value:.4g}")
    line(f"verdict: {record.verdict}", "bold")
    if any(row.outcome in (Outcome.FAIL, Outcome.ERROR) for row in record.checks):
        line(REMEDIES)
    else:
        line(FOOTER, "dim")


def _wants_telling(row: Row) -> bool:
    return row.outcome in (*FAILING, Outcome.INCONCLUSIVE) or bool(row.message and row.outcome is Outcome.NOT_RUN)


def _alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Put rows together that end alike in the same words: one cause must not fill the screen a hundred times."""
    found: dict[tuple[Outcome, str], list[Row]] = {}
    for row in rows:
        words = "\n".join(text for text in row.message.splitlines() if not text.startswith("law "))
        found.setdefault((row.outcome, words or row.id), []).append(row)
    groups: list[list[Row]] = []
    for group in found.values():
        groups += [group] if len(group) > MAX_ALIKE else [[row] for row in group]
    return groups


def _tell_row(line: object, row: Row) -> None:
    assert callable(line)
    line(f"{row.outcome} {row.id}", "bold")
    line(f"  {row.title} [{link(row.spec)}]")
    for text in row.message.splitlines():
        line(f"  {text}")


def open_folder(report: Path) -> None:
    """Make the folder of the reports now: not being able to write must not show after an hour of checks.

    Raises:
        StorageError: it cannot be made or written.
    """
    try:
        report.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=report):
            pass
    except OSError as error:
        raise StorageError(
            f"--report {report} cannot be written", why=str(error), fix="choose a folder you can write to"
        ) from error


def _refused(told: str) -> int:
    print(told, file=sys.stderr)
    return BAD_INPUT
