"""`areal conformance self-test`: may the suite be believed?

Knows: what a person sees of it, and its exit codes.
Does not know: what is asserted (`selftest.judge`), or how the work is done (`selftest.crew`).
"""

from __future__ import annotations

import difflib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.status import Status
from rich.table import Table

from areal_conformance.check import CHECKED_ROLES
from areal_conformance.checks import all_checks, checks_of
from areal_core.contract.errors import ConfigError
from areal_proof.incidents import ROWS
from areal_proof.mutants import Mutant, all_mutants
from areal_proof.selftest import judge
from areal_proof.selftest.crew import do_all
from areal_proof.selftest.matrix import differences, read_matrix, renewed, write_matrix
from areal_proof.selftest.references import present
from areal_proof.selftest.work import Ended, Item, mutant_items, reference_items

MAX_KILLERS = 3
Flag = Parameter(negative=())


def self_test(
    *,
    full: Annotated[bool, Flag] = False,
    write: Annotated[bool, Flag] = False,
    role: Annotated[str, Parameter(show_default=False)] = "",
    mutant: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    part: Annotated[str, Parameter(show_default=False)] = "",
    jobs: int = 3,
) -> int:
    """Let the suite prove itself: references pass, and every backend broken on purpose is caught.

    Exit codes: 0 it may be believed, 1 it may not.

    Args:
        full: Make every check on every mutant, not only its declared killers; takes long.
        write: Renew the committed kill matrix.
        role: Only references and mutants of this role.
        mutant: Only these mutants, and no reference.
        part: K/N makes the K-th of N equal parts of the work: all N together are everything.
        jobs: Processes to spread the work over; one more than cores, for many of them wait.
    """
    if role and role not in CHECKED_ROLES:
        raise ConfigError(f"no mutants of the role {role!r}", why=f"roles are {', '.join(CHECKED_ROLES)}")
    began = time.perf_counter()
    mutants = [m for m in all_mutants().values() if role in ("", m.role) and (not mutant or m.name in mutant)]
    unknown = sorted(set(mutant) - {m.name for m in mutants})
    if unknown:
        near = [hit for name in unknown for hit in difflib.get_close_matches(name, all_mutants(), n=2)]
        fix = f"did you mean {' or '.join(near)}?" if near else "areal conformance explain CHECK names those it kills"
        raise ConfigError(f"no mutant {', '.join(unknown)}", fix=fix)
    begin, step = _part(part)
    mutants = mutants[begin::step]
    references, absent = ((), ()) if mutant else present()
    checks = {name: checks_of(name) for name in CHECKED_ROLES}
    items = reference_items([one for one in references if role in ("", one.role)], checks)[begin::step]
    items += mutant_items(mutants, checks, full=full)
    console = Console(soft_wrap=True)
    with _Show(console, len(items)) as show:
        ends = do_all(items, jobs=jobs, listener=show)
    found = judge.kills(ends)
    whole = not (role or mutant or part)
    seen = found if full else {}
    faults = judge.reference_faults(ends) + judge.mutant_faults(mutants, ends)
    if not mutant:
        concerned = [c for c in all_checks().values() if role in ("", c.role)]
        faults += judge.killerless(concerned, all_mutants().values())
        faults += judge.rowless(ROWS, all_mutants().values())
    if write:
        write_matrix(renewed(read_matrix(), all_mutants().values(), seen))
    matrix = {name: line for name, line in read_matrix().items() if whole or name in {m.name for m in mutants}}
    faults += [f"(d) {told}" for told in differences(matrix, mutants, seen)]
    _tables(console, mutants, found, ends)
    _summary(console, mutants, found, ends, faults, absent, time.perf_counter() - began)
    return 1 if faults else 0


def _part(text: str) -> tuple[int, int]:
    """Return where the part `K/N` begins, and the step to the next of it."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text or "1/1")
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigError(f"{text!r} is no part", why="it is K/N, the K-th of N equal ones", fix="--part 1/2")
    return int(found[1]) - 1, int(found[2])


class _Show:
    """One line an item, as it ends; below, what runs now. A `crew.Listener`."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._running: list[str] = []
        self._status: Status | None = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> _Show:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_ended: object) -> None:
        if self._status is not None:
            self._status.stop()

    def began(self, item: Item) -> None:
        self._running.append(item.label)
        self._now()

    def ended(self, item: Item, ends: list[Ended]) -> None:
        self._done += 1
        self._running.remove(item.label)
        fine = judge.passed(item, ends)
        counts = Counter(str(end.outcome) for end in ends)
        word = ("killed" if item.mutant else "passes") if fine else ("SURVIVES" if item.mutant else "FAILS")
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        seconds = sum(end.seconds for end in ends)
        line = f"{self._done:>4}/{self._total} {word:<8} {item.label}: {told}, {seconds:.1f} s"
        self._console.print(line, style="" if fine else "bold red", markup=False, highlight=False, soft_wrap=True)
        self._now()

    def _now(self) -> None:
        if self._status is not None:
            self._status.update(f"{self._done}/{self._total} {', '.join(self._running)}")


def _tables(console: Console, mutants: Sequence[Mutant], found: Mapping[str, set[str]], ends: Sequence[Ended]) -> None:
    seconds: Counter[str] = Counter()
    for end in ends:
        seconds[end.item.mutant] += end.seconds  # type: ignore[assignment]  # a Counter adds floats as well
    for role in CHECKED_ROLES:
        mine = [m for m in mutants if m.role == role]
        if not mine:
            continue
        whole = judge.killed(mine, found)
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        table.title = f"{role}: {len(whole)} of {len(mine)} killed by every declared killer"
        for column in ("mutant", "of", "kills", "killers", "s"):
            table.add_column(column, no_wrap=column != "killers", overflow="fold")
        for one in mine:
            by = found.get(one.name, set())
            hits = [key for key in one.killers if key in by]
            others = sorted(by - set(one.killers))
            shown = [*hits, *others][:MAX_KILLERS]
            more = len(hits) + len(others) - len(shown)
            table.add_row(
                one.name,
                one.of.partition("/")[2],
                f"{len(hits)}/{len(one.killers)}" + (f" +{len(others)}" if others else ""),
                ", ".join(shown) + (f" and {more} more" if more > 0 else ""),
                f"{seconds[one.name]:.1f}",
            )
        console.print()
        console.print(table)


def _summary(
    console: Console,
    mutants: Sequence[Mutant],
    found: Mapping[str, set[str]],
    ends: Sequence[Ended],
    faults: Sequence[str],
    absent: Sequence[str],
    seconds: float,
) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    line("")
    for told in absent:
        line(f"note: {told}", "dim")
    for fault in faults:
        line(fault, "red")
    whole = len(judge.killed(mutants, found))
    caught = sum(bool(found.get(one.name)) for one in mutants)
    passes = Counter(judge.passed(end.item, [end]) for end in ends if not end.item.mutant)
    rate = 100 * caught / len(mutants) if mutants else 0.0
    line(f"references: {passes[True]} checks pass, {passes[False]} do not")
    line(f"mutants: {caught} of {len(mutants)} killed ({rate:.1f} %), {whole} by every declared killer")
    line(f"{len(faults)} faults in {seconds:.0f} s", "bold red" if faults else "bold green")
