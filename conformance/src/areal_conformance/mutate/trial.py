"""One mutant against the checks that look at it: which of them notices?

Knows: what counts as noticing: a check that fails, ends in error, dies, or does not come back.
Does not know: which mutants are tried, or what people said of them.
"""

from __future__ import annotations

import itertools
import math
from enum import StrEnum

import attrs
from attrs import field, frozen

from areal_conformance.mutate.child import LOADING
from areal_conformance.mutate.cover import Coverage, Made
from areal_conformance.mutate.mutants import Mutant
from areal_conformance.mutate.process import START_S, Late, Line, Zygote
from areal_conformance.mutate.source import Source
from areal_conformance.mutate.subject import Told
from areal_conformance.outcome import HarnessError, Outcome

TIMES = 8.0
"""A check that takes so many times as long as on the backend as it is does not come back; `MARGIN_S` comes on top."""
MARGIN_S = 20.0
CLOSE_S = 120.0


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    """Every check that looks at it passed."""
    UNSEEN = "unseen"
    """No check ever runs its line."""
    LEFT = "left"
    """It was not tried: people said why it may live."""


@frozen(kw_only=True)
class Trial:
    """One mutant, tried."""

    fate: Fate = field(converter=Fate)
    checks: tuple[str, ...] = ()
    """Those that look at it, the cheapest first."""
    not_asked: int = 0
    """How many of them were left out, for they would have taken too long."""
    killer: str = ""
    how: str = ""
    """`fail`, `error`, `timeout` or `died`."""
    message: str = ""
    seconds: float = 0.0


def attempt(
    zygote: Zygote, subject: Told, source: Source, mutant: Mutant, coverage: Coverage, spend_s: float = math.inf
) -> Trial:
    """Try one mutant; of the checks that look at it ask those that take `spend_s` together, at least one."""
    checks = coverage.checks_at(source, mutant)
    if not checks:
        return Trial(fate=Fate.UNSEEN)
    ends = itertools.accumulate(coverage.made[key].seconds for key in checks)
    asked = checks[: max(1, sum(end <= spend_s for end in ends))]
    trial = _attempted(zygote, subject, source, source.changed(mutant.change), asked, coverage)
    return attrs.evolve(trial, checks=checks, not_asked=len(checks) - len(asked))


def _attempted(
    zygote: Zygote,
    subject: Told,
    source: Source,
    text: str,
    checks: tuple[str, ...],
    coverage: Coverage,
) -> Trial:
    given = {
        "subject": dict(subject),
        "checks": list(checks),
        "path": str(source.path),
        "text": text,
    }
    try:
        lines, code = zygote.do(
            "areal_conformance.mutate.child:attempt", lambda line: limit_of(line, coverage), **given
        )
    except Late as error:
        return _judged(checks, error.lines, late=str(error))
    return _judged(checks, lines, code=code)


def control(zygote: Zygote, subject: Told, source: Source, coverage: Coverage) -> list[Made]:
    """Make all checks together on the source as it is, as they are made on a mutant; drop those that fail so.

    Without it a check that fails in a fork, or beside others, would kill every mutant.
    """
    dropped: list[Made] = []
    waiting = sorted(coverage.lines, key=lambda key: coverage.made[key].seconds)
    while waiting:
        trial = _attempted(zygote, subject, source, source.text.decode(), tuple(waiting), coverage)
        if trial.fate is not Fate.KILLED:
            break
        if trial.killer not in coverage.lines:
            raise HarnessError(f"the backend as it is does not work in a fork: {trial.message}")
        made = Made(check=trial.killer, outcome=trial.how, seconds=0.0, message=trial.message)
        coverage.drop(made)
        dropped.append(made)
        waiting = waiting[waiting.index(trial.killer) + 1 :]
    return dropped


def limit_of(line: Line, coverage: Coverage) -> float:
    """Return how long the line after this one may take."""
    running = line.get("began")
    if running in coverage.made:
        return TIMES * coverage.made[running].seconds + MARGIN_S
    return CLOSE_S if line and running != LOADING else START_S


def _judged(checks: tuple[str, ...], lines: list[Line], *, late: str = "", code: int = 0) -> Trial:
    ended = [line for line in lines if "ended" in line]
    seconds = round(sum(line["seconds"] for line in ended), 3)
    for line in ended:
        if line["outcome"] in (Outcome.FAIL, Outcome.ERROR):
            return Trial(
                fate=Fate.KILLED,
                checks=checks,
                killer=line["ended"],
                how=line["outcome"],
                message=line["message"],
                seconds=seconds,
            )
    running = next((line["began"] for line in reversed(lines) if "began" in line), LOADING)
    if late or code:
        how, why = ("timeout", late) if late else ("died", f"the process ended with {code}")
        return Trial(fate=Fate.KILLED, checks=checks, killer=running, how=how, message=why, seconds=seconds)
    return Trial(fate=Fate.SURVIVED, checks=checks, seconds=seconds)
