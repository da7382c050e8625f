"""`areal conformance mutate`: which single edits of a backend does no check notice?

Knows: options, a terminal, exit codes.
Does not know: how mutants are made and tried (`mutate.run`).
"""

from __future__ import annotations

import difflib
import math
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter
from rich.console import Console
from rich.status import Status

from areal_conformance.cli.child import stoppable
from areal_conformance.cli.run import BAD_INPUT, open_folder
from areal_conformance.mutate.cover import Made
from areal_conformance.mutate.operators import OPERATORS
from areal_conformance.mutate.record import Row
from areal_conformance.mutate.report import short, text, write
from areal_conformance.mutate.run import Wanted, can_fork
from areal_conformance.mutate.run import run as run_mutants
from areal_conformance.mutate.trial import Fate
from areal_conformance.outcome import HarnessError
from areal_conformance.run.asked import Asked, locator_of
from areal_core.contract.errors import ArealError, ConfigError

Word = Annotated[str, Parameter(show_default=False)]
Several = Parameter(consume_multiple=True, negative=(), show_default=False)


def mutate(
    *,
    backend: Word = "",
    role: Word = "",
    pair: Word = "",
    sample: Annotated[int | None, Parameter(show_default=False)] = None,
    seed: int = 0,
    level: int = 4,
    ranks: int = 1,
    device: str = "cpu",
    also: Annotated[tuple[str, ...], Several] = (),
    module: Annotated[tuple[str, ...], Several] = (),
    operator: Annotated[tuple[str, ...], Several] = (),
    edits: Annotated[tuple[Path, ...], Several] = (),
    check: Annotated[tuple[str, ...], Several] = (),
    suite: Word = "",
    imports: Annotated[tuple[Path, ...], Parameter(name="--import"), Several] = (),
    triage: Annotated[tuple[Path, ...], Several] = (),
    spend: Annotated[float, Parameter(show_default=False)] = math.inf,
    gaps: Annotated[bool, Parameter(negative=())] = False,
    skip_excused: Annotated[bool, Parameter(negative=())] = False,
    report: Path | None = None,
    at_least: Annotated[float, Parameter(show_default=False)] = 0.0,
) -> int:
    """Change a backend's source in one place at a time, and see whether a check notices.

    Exit codes: 0 all were tried, 1 the score is below --at-least, 2 bad input, 130 interrupted.

    Args:
        backend: Name of an installed plugin, or of one that --import brings.
        role: Needed if the name has several roles.
        pair: Two engines together, as TRAIN+INFER; --module or --edits says what is changed.
        sample: Try so many mutants, drawn at random; all of them if not given.
        seed: Of the draw: the same seed draws the same mutants.
        level: Use checks up to this level.
        ranks: Use checks that need up to so many ranks.
        device: Kind of device: cpu, cuda, ...
        also: Packages whose modules are changed too where the backend imports them: kits.
        module: Change these modules instead: names as they are imported, with * for any part.
        operator: Make only these changes; see docs/how-to/mutate.md.
        edits: Try what these files say, or the *.toml of these folders, in place of what operators make.
        check: Use only these checks, with * for any part.
        suite: In place of a backend, something with checks of its own, as module:name; --module says what is changed.
        imports: Register this .py file first, or these.
        triage: Files of judged survivors, beside mutation.toml in the packages that are changed.
        spend: Ask of each mutant checks that take so many seconds together, the cheapest first; all if not given.
        gaps: Try only those judged a gap, after a check was written.
        skip_excused: Do not try those that mutation.toml says may live: quicker, for continuous integration.
        report: Write mutation.json, mutation.md and survivors.toml into this folder.
        at_least: Fail if a smaller share than this dies, 0 to 1.
    """
    console = Console(soft_wrap=True)
    try:
        can_fork()
        _sensible(sample, at_least, level, spend, operator)
        asked = Asked(
            backend=backend,
            role=role,
            pair=pair,
            device=device,
            ranks=ranks,
            imports=tuple(str(path) for path in imports),
        )
        named = [word for word in (backend, pair, suite) if word]
        if len(named) != 1:
            raise ConfigError(
                "there are two things to change" if named else "nothing says what to change",
                why="mutants are made of one backend, of what a pair runs, or of what one suite checks",
                fix="give --backend NAME, or --pair TRAIN+INFER or --suite MODULE:NAME with --module or --edits",
            )
        if edits and operator:
            raise ConfigError(
                "there are two kinds of mutants to try",
                why="--edits says what to change, and so does --operator",
                fix="leave one out; run twice for both",
            )
        if report is not None:
            open_folder(report)
        absent = [path for path in triage if not path.is_file()]
        if absent:
            raise ConfigError(f"--triage {absent[0]}: there is no such file", fix="write the path of a mutation.toml")
        wanted = Wanted(
            subject={"suite": suite} if suite else {"locator": attrs.asdict(locator_of(asked))},
            level=level,
            sample=sample,
            seed=seed,
            also=also,
            modules=module,
            checks=check,
            operators=operator,
            edits=edits,
            triage=triage,
            spend_s=spend,
            gaps=gaps,
            skip_excused=skip_excused,
            command=shlex.join(["areal", *sys.argv[1:]]),
        )
        with _Show(console) as show, stoppable():
            record = run_mutants(wanted, show)
    except (ArealError, HarnessError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted before the first mutant", file=sys.stderr)
        return 128 + signal.SIGINT
    console.print(text(record), markup=False, highlight=False)
    for path in write(record, report) if report is not None else ():
        console.print(f"written: {path}", markup=False, highlight=False)
    if record.interrupted:
        return 128 + signal.SIGINT
    return 1 if record.score.rate < at_least else 0


def _sensible(sample: int | None, at_least: float, level: int, spend_s: float, operators: tuple[str, ...]) -> None:
    """Refuse what cannot be meant.

    Raises:
        ConfigError: says which option, and what it may be.
    """
    if sample is not None and sample < 1:
        raise ConfigError(
            f"--sample {sample} is no sample", why="it is a number of mutants, 1 or more", fix="--sample 40"
        )
    if not 0.0 <= at_least <= 1.0:
        raise ConfigError(f"--at-least {at_least:g} is no share", why="it is between 0 and 1", fix="--at-least 0.9")
    if not spend_s > 0.0:
        raise ConfigError(f"--spend {spend_s:g} asks nothing", why="it is seconds, more than 0", fix="--spend 30")
    if not 0 <= level <= 5:
        raise ConfigError(f"there is no level {level}", why="levels are 0 to 5", fix="areal conformance list")
    for name in operators:
        if name not in OPERATORS:
            near = difflib.get_close_matches(name, OPERATORS, n=1)
            raise ConfigError(
                f"there is no operator {name!r}",
                why=f"operators are {', '.join(OPERATORS)}",
                fix=f"did you mean {near[0]}?" if near else "leave --operator out to use all",
            )


class _Show:
    """One line a check that cannot be used and one a mutant; below, how far it is. A `mutate.run.Listener`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("preparing") if console.is_terminal else None

    def __enter__(self) -> _Show:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_ended: object) -> None:
        if self._status is not None:
            self._status.stop()

    def said(self, text: str) -> None:
        self._line(text)

    def made(self, made: Made, number: int, total: int) -> None:
        if self._status is not None:
            self._status.update(f"{number}/{total} {made.check}")
        if made.outcome not in ("pass", "skip"):
            told = " ".join(made.message.split("\n")[:2])  # the law, and what was seen
            self._line(f"{number:>4}/{total} not used: {made.check} is {made.outcome} on the backend as it is: {told}")
        elif self._status is None and number % 50 == 0:
            self._line(f"{number:>4}/{total} checks made")

    def tried(self, row: Row, number: int, total: int) -> None:
        style = "" if row.trial.fate is Fate.KILLED else "dim" if row.excused else "bold red"
        self._line(f"{number:>4}/{total} {short(row)}", style)
        if self._status is not None:
            self._status.update(f"{number}/{total} mutants")

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
