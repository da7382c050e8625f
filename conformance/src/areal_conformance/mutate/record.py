"""The record of one run of mutants: what was asked, each mutant and its fate, the scores.

Knows: its fields, and how JSON is made of them.
Does not know: how it came about (`run`), or how it looks (`report`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import cattrs
from attrs import Factory, frozen

from areal_conformance.mutate.mutants import Key
from areal_conformance.mutate.score import Score
from areal_conformance.mutate.triage import Said
from areal_conformance.mutate.trial import Fate, Trial

SCHEMA = "areal-mutation/1"
_REFUSED = re.compile(r"\b(?:Type|Attribute|Name|UnboundLocal)Error\b")


@frozen(kw_only=True)
class Row:
    """One mutant of the sample."""

    key: Key
    line: int
    old: str
    new: str
    """The line as it is, and as the mutant has it."""
    trial: Trial
    why: str = ""
    """What the author of an edit says of it."""
    said: Said | None = None

    @property
    def excused(self) -> bool:
        """Tell whether it leaves the score: it lives, and people said why it may."""
        return self.trial.fate is not Fate.KILLED and self.said is not None and self.said.excused

    @property
    def refused(self) -> bool:
        """Tell whether Python itself refused it, as it does swapped arguments of two types: any call would tell."""
        return self.trial.fate is Fate.KILLED and _REFUSED.search(self.trial.message) is not None


@frozen(kw_only=True)
class Record:
    """One run."""

    role: str
    name: str
    origin: str
    command: str
    started: str
    seed: int
    asked: int | None
    """Size of the sample; None for all."""
    population: dict[str, int]
    """Path -> how many mutants its module has."""
    checks: dict[str, str] = Factory(dict)
    """Check -> how it ended on the backend as it is."""
    unrun: dict[str, tuple[int, ...]] = Factory(dict)
    """Path -> lines of statements in functions that no check runs, in the whole module and not in the sample alone."""
    rows: tuple[Row, ...] = ()
    planned: int = 0
    stale: tuple[Key, ...] = ()
    """Entries of a triage file that fit no mutant."""
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def score(self) -> Score:
        """Return the score of all rows."""
        return score_of(self.rows)

    @property
    def score_of_valid(self) -> Score:
        """Return the score of the rows that Python did not refuse."""
        return score_of(row for row in self.rows if not row.refused)

    def by_module(self) -> dict[str, Score]:
        """Return the score of each module."""
        paths = sorted({row.key.path for row in self.rows})
        return {path: score_of(row for row in self.rows if row.key.path == path) for path in paths}

    def living(self, fate: Fate) -> list[Row]:
        """Return the rows of that fate that are in the score, from above."""
        found = [row for row in self.rows if row.trial.fate is fate and not row.excused]
        return sorted(found, key=lambda row: (row.key.path, row.line, row.key.operator))


def score_of(rows: Iterable[Row]) -> Score:
    """Return how many died, of those that nobody excused."""
    counted = [row for row in rows if not row.excused]
    return Score(sum(row.trial.fate is Fate.KILLED for row in counted), len(counted))


def to_json(record: Record) -> dict[str, Any]:
    """Return the record as JSON, with the scores it amounts to. Any: several types."""
    data: dict[str, Any] = cattrs.unstructure(record)
    fates = Counter(str(row.trial.fate) for row in record.rows)
    fates["excused"] = sum(row.excused for row in record.rows)
    fates["refused"] = sum(row.refused for row in record.rows)
    return {
        "schema": SCHEMA,
        "score": _plain(record.score),
        "score_of_valid": _plain(record.score_of_valid),
        "modules": {path: _plain(score) for path, score in record.by_module().items()},
        "fates": dict(sorted(fates.items())),
        **data,
    }


def _plain(score: Score) -> dict[str, Any]:
    low, high = score.interval
    return {"killed": score.killed, "total": score.total, "rate": score.rate, "low": low, "high": high}
