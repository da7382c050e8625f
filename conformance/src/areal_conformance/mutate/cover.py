"""Which checks run which lines of a backend, and how long each takes: one pass over the backend as it is.

Every check is made in a process of its own, so its lines are its own, also those of processes that it starts. Lines
that run while a module is imported are run by every check that imports it, and say little: functions count first.

Knows: how lines become the checks that look at a mutant.
Does not know: how a line is seen (`hook`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import define, field, frozen

from areal_conformance.mutate.child import LOADING
from areal_conformance.mutate.mutants import Mutant
from areal_conformance.mutate.process import START_S, Late, Line, Zygote
from areal_conformance.mutate.source import Source, Spot
from areal_conformance.mutate.subject import Told
from areal_conformance.outcome import Outcome

_OF_OPTIONS = ".options."
"""In the names of checks that look at what options say; they may run no function of the module that has them."""
LIMIT_S = 600.0
"""For one check that is traced; its own deadline ends it sooner."""


@frozen(kw_only=True)
class Made:
    """One check on the backend as it is."""

    check: str
    outcome: str
    seconds: float
    message: str = ""


@define
class Coverage:
    """Lines by check. Example: coverage.checks_at(source, mutant) == ("infer.pause.freezes",), the cheapest first."""

    made: dict[str, Made] = field(factory=dict)
    lines: dict[str, dict[Path, set[int]]] = field(factory=dict)
    """Check -> file -> lines."""
    in_memory: set[Path] = field(factory=set)
    """What had been imported when the lines of a check began to be seen; every check imports it by itself later."""

    def files(self) -> set[Path]:
        """Return every file that some check ran."""
        return {path for files in self.lines.values() for path in files}

    def uses(self, source: Source) -> bool:
        """Whether some check runs a function of a module that has some: one that does not may be another plugin's."""
        bodies = _bodies(source)
        return not bodies or bool(self._running(source, bodies))

    def checks_at(self, source: Source, mutant: Mutant) -> tuple[str, ...]:
        """Return the passing checks that run a mutant's statement, the cheapest first.

        What runs while the module is imported, a constant or the default of an argument, is looked at by the checks
        that run the function it is a default of, or any function of the module, and by those of options; where no check
        runs one, by all that import it: the fields of a class of settings are read elsewhere, and a mutant is imported
        anew.
        """
        found = self._running(source, watched_lines(source, mutant))
        if at_import := imported_lines(source, mutant):
            there = list(self.lines) if source.path in self.in_memory else self._running(source, at_import)
            found += [key for key in there if key not in found and (not found or _OF_OPTIONS in key)]
        return tuple(sorted(found, key=lambda key: self.made[key].seconds))

    def unrun(self, source: Source) -> tuple[int, ...]:
        """Return the lines of statements in functions that no passing check runs, each statement's first one."""
        run = {line for files in self.lines.values() for line in files.get(source.path, ())}
        found = [node for node in ast.walk(source.tree) if isinstance(node, ast.stmt) and not _says_nothing(node)]
        told = source.path in self.in_memory  # what ran while it was imported nobody saw
        nodes = [node for node in found if source.function(node) is not None and not _head(source, node) & run]
        return tuple(sorted({node.lineno for node in nodes if not (told and _runs_at_import(source, node))}))

    def _running(self, source: Source, wanted: set[int]) -> list[str]:
        return [key for key, files in self.lines.items() if files.get(source.path, set()) & wanted]

    def drop(self, made: Made) -> None:
        """Use a check no more: it ended otherwise than before on the backend as it is."""
        self.made[made.check] = made
        self.lines.pop(made.check, None)


def watched_lines(source: Source, mutant: Mutant) -> set[int]:
    """Return the lines of which one runs if, and only if, what a mutant changes is looked at."""
    nodes = (mutant.change.node, *mutant.change.beside)
    return {line for node in nodes for line in _watched(source, node)}


def imported_lines(source: Source, mutant: Mutant) -> set[int]:
    """Return the lines of a mutant's statements that run at import, in functions that are called there too."""
    nodes = [node for node in (mutant.change.node, *mutant.change.beside) if _runs_at_import(source, node)]
    return {line for node in nodes for line in _head(source, source.statement(node))}


def _runs_at_import(source: Source, node: ast.AST) -> bool:
    """Tell whether a node is outside of functions, or in one that is called by its name outside of all."""
    function = source.function(node)
    if function is None:
        return True
    calls = (one for one in ast.walk(source.tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name))
    return any(call.func.id == function.name and source.function(call) is None for call in calls)  # type: ignore[attr-defined]


def _watched(source: Source, node: Spot) -> set[int]:
    if source.function(node) is not None:
        return _head(source, source.statement(node))
    owner = source.statement(node)
    if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
        return _body(owner)
    return _bodies(source)


def _says_nothing(node: ast.stmt) -> bool:
    """Tell whether a statement never runs as a line of its own: a docstring, an ellipsis, a declaration."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return (
        is_text or isinstance(node, ast.Global | ast.Nonlocal) or (isinstance(node, ast.AnnAssign) and not node.value)
    )


def _head(source: Source, statement: ast.stmt) -> set[int]:
    """Return a statement's lines, without those of statements inside it."""
    return set(range(statement.lineno, source.head(statement) + 1))


def _bodies(source: Source) -> set[int]:
    functions = [one for one in ast.walk(source.tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {line for one in functions for line in _body(one)}


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    assert function.end_lineno is not None
    return set(range(function.body[0].lineno, function.end_lineno + 1))


def measure(
    zygote: Zygote,
    subject: Told,
    checks: Iterable[str],
    trace: Iterable[Path],
    tell: Callable[[Made], None],
) -> Coverage:
    """Make every check once, and keep the lines of those that pass.

    Args:
        trace: Folders and files whose lines are told.
    """
    coverage, offered = Coverage(), set[str]()
    prefixes = [f"{path}/" if path.is_dir() else str(path) for path in trace]
    for number, key in enumerate(checks):
        to = zygote.folder / f"lines-{number}.txt"
        given = {"subject": dict(subject), "check": key, "trace": prefixes, "to": str(to)}
        try:
            lines, code = zygote.do("areal_conformance.mutate.child:cover", _limit, **given)
        except Late as error:
            lines, code = error.lines, 0
        made = _made(key, lines, code)
        coverage.made[key] = made
        _warmer(zygote, lines, offered)
        if made.outcome == Outcome.PASS:
            coverage.lines[key] = read_lines(to)
        to.unlink(missing_ok=True)
        tell(made)
    return coverage


def read_lines(path: Path) -> dict[Path, set[int]]:
    """Read what `hook` wrote."""
    found: dict[Path, set[int]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, line = text.rpartition(":")
        if line.isdecimal():
            found.setdefault(Path(name).resolve(), set()).add(int(line))
    return found


def _warmer(zygote: Zygote, lines: list[Line], offered: set[str]) -> None:
    """Have the zygote import what a check had to import by itself: the next one need not. Each is offered once."""
    loaded = [name for line in lines for name in line.get("loaded", ()) if not name.startswith("_")]
    new = [name for name in loaded if name not in offered and name not in zygote.modules]
    offered.update(new)
    if new:
        zygote.load(new)


def _limit(_line: Line) -> float:
    return max(LIMIT_S, START_S)


def _made(key: str, lines: list[Line], code: int) -> Made:
    for line in lines:
        if line.get("ended") in (key, LOADING):
            return Made(check=key, outcome=line["outcome"], seconds=line["seconds"], message=line["message"])
    why = f"the process ended with {code}" if code else "it did not end in time"
    return Made(check=key, outcome=Outcome.ERROR, seconds=LIMIT_S, message=why)
