"""Which checks of the profile a run makes: those named, those a pattern matches, those that failed in a report.

Knows: ids, `*`, and reports.
Does not know: which checks a run owes (`profile`): the rest of those stay open.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from areal_conformance.check import Check
from areal_conformance.outcome import Outcome
from areal_conformance.run.record import Record, read_record
from areal_core.contract.errors import ConfigError

NOT_PASSED = (Outcome.FAIL, Outcome.ERROR, Outcome.UNEXPECTED_PASS, Outcome.INCONCLUSIVE)
_WILD = frozenset("*?[")


def chosen(only: Iterable[str], profile: Iterable[Check], every: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks of a profile that are asked for, in its order; all of them where none is.

    Args:
        only: ids, and patterns: `infer.pause.*`.
        profile: the checks of the run.
        every: all checks of the role, to say what one that is outside would need.

    Raises:
        ConfigError: an id is none of the run's, or a pattern matches none.
    """
    wanted = tuple(only)
    inside = {check.id: check for check in profile}
    if not wanted:
        return tuple(inside.values())
    outside = {check.id: check for check in every if check.id not in inside}
    taken: set[str] = set()
    for key in wanted:
        found = [key] if key in inside else _matching(key, inside)
        if not found:
            raise _none(key, inside, outside)
        taken.update(found)
    return tuple(check for check in inside.values() if check.id in taken)


def failed_in(report: Path, *, role: str, name: str, device: str) -> tuple[str, ...]:
    """Return the checks of a report that ended in fail, error, unexpected-pass or inconclusive.

    Raises:
        ConfigError: it is no report, is about another target, or nothing failed in it.
    """
    record = read_record(report)
    about = (record.subject.role, record.subject.name, record.subject.device)
    if about != (role, name, device):
        raise ConfigError(
            f"{report} is no report on {role} {name} on {device}",
            why=f"it is on {about[0]} {about[1]} on {about[2]}",
            fix="give --only-failed a report on what is checked now",
        )
    failed = tuple(row.id for row in record.checks if row.outcome in NOT_PASSED)
    if not failed:
        raise ConfigError(
            f"no check failed in {report}", why=_short(record), fix="leave --only-failed out to make all checks"
        )
    return failed


def _short(record: Record) -> str:
    return f"its verdict is {record.verdict}: {record.line}"


def _matching(pattern: str, ids: Iterable[str]) -> list[str]:
    return [key for key in ids if fnmatchcase(key, pattern)] if _WILD & set(pattern) else []


def _none(key: str, inside: Mapping[str, Check], outside: Mapping[str, Check]) -> ConfigError:
    found = _matching(key, outside)
    if key in outside or found:
        lowest = min((outside[name] for name in found or [key]), key=lambda one: (one.level, one.ranks))
        return ConfigError(
            f"{key!r} is not a check of this run",
            why=f"it is of level {int(lowest.level)} and takes {lowest.ranks} ranks or more",
            fix=f"--level {int(lowest.level)} --ranks {lowest.ranks}, or higher",
        )
    near = difflib.get_close_matches(key, {**inside, **outside}, n=1)
    return ConfigError(
        f"{key!r} is not a check of this run",
        why="it has another role, or does not exist",
        fix=f"did you mean {near[0]}?" if near else "areal conformance list",
    )
