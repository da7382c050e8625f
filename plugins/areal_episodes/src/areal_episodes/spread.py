"""How many episodes look together: histograms, and who was busy when. SQLite counts; memory does not grow.

Knows: what can be measured of an episode, as SQL.
Does not know: single episodes (`reader`), or how a histogram is drawn.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from attrs import frozen

from areal_episodes import schema
from areal_episodes.reader import Filter


class Measure(StrEnum):
    """What can be measured of an episode."""

    LENGTH = "length"
    PROMPT = "prompt"
    REWARD = "reward"
    STALENESS = "staleness"
    """Versions its oldest token lagged behind the weights that were trained in its step."""
    SECONDS = "seconds"


_SQL = {
    Measure.LENGTH: "output_tokens",
    Measure.PROMPT: "prompt_tokens",
    Measure.REWARD: "reward",
    Measure.STALENESS: "step - 1 - oldest_version",
    Measure.SECONDS: "seconds",
}
_WHOLE = (Measure.LENGTH, Measure.PROMPT, Measure.STALENESS)
_FINITE = 1e300
_MAX_REPLICAS = 64


@frozen
class Bar:
    """Episodes from `low` up to `high`, without it.

    Example: Bar(low=0.0, high=0.25, count=12)
    """

    low: float
    high: float
    count: int


class Spread:
    """The store of a run folder, to count in."""

    def __init__(self, folder: Path) -> None:
        """Open it.

        Raises:
            StorageError: there is none, or it cannot be read.
        """
        self._database = schema.open_to_read(folder / schema.FILE)

    def __enter__(self) -> Spread:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def histogram(self, measure: Measure, chosen: Filter | None = None, *, bars: int = 30) -> list[Bar]:
        """Return at most `bars` bars of equal width from the least to the largest; none without an episode."""
        value = _SQL[measure]
        where, values = (chosen or Filter()).where()
        where = f"{where} AND ({value}) BETWEEN {-_FINITE} AND {_FINITE}"
        low, high = self._one(f"SELECT min({value}), max({value}) FROM episodes WHERE {where}", values)
        if low is None:
            return []
        width, count = _widths(low, high, bars, whole=measure in _WHOLE)
        found = self._database.execute(
            f"SELECT min(CAST((({value}) - ?) / ? AS INTEGER), ?) AS bar, count(*) FROM episodes "
            f"WHERE {where} GROUP BY bar",
            [low, width, count - 1, *values],
        )
        counts = {int(bar): int(number) for bar, number in found}
        return [Bar(low + n * width, low + (n + 1) * width, counts.get(n, 0)) for n in range(count)]

    def choices(self, column: str) -> list[str]:
        """Return the values there are of `fate`, `kind` or `reward_status`."""
        if column not in ("fate", "kind", "reward_status"):
            raise ValueError(f"{column} has no few values: ask for fate, kind or reward_status")
        found = self._database.execute(f"SELECT DISTINCT {column} FROM episodes ORDER BY 1 LIMIT 50")
        return [str(value) for (value,) in found if value]

    def last_step(self) -> int:
        """Return the last step that trained an episode which is still kept; 0 without one."""
        (step,) = self._one("SELECT max(step) FROM episodes", [])
        return int(step or 0)

    def busy(self, start: float, end: float, *, bins: int) -> Mapping[str, Sequence[float]]:
        """Return, per replica, how many episodes it had in flight on average in each part of a time."""
        width = (end - start) / bins
        found: dict[str, list[float]] = {}
        for replica, began, seconds in self._database.execute(
            "SELECT replica, started, seconds FROM episodes WHERE started < ? AND started + seconds > ?", (end, start)
        ):
            if replica not in found and len(found) == _MAX_REPLICAS:
                continue
            bars = found.setdefault(replica, [0.0] * bins)
            first, last = max(began, start), min(began + seconds, end)
            for number in range(int((first - start) / width), min(bins - 1, int((last - start) / width)) + 1):
                low = start + number * width
                bars[number] += max(0.0, min(last, low + width) - max(first, low)) / width
        return dict(sorted(found.items()))

    def _one(self, sql: str, values: Sequence[object]) -> sqlite3.Row:
        row: sqlite3.Row = self._database.execute(sql, values).fetchone()
        return row


def _widths(low: float, high: float, bars: int, *, whole: bool) -> tuple[float, int]:
    """Return the width of a bar and how many there are; whole numbers get whole bars."""
    if whole:
        width = max(1, math.ceil((high - low + 1) / bars))
        return float(width), math.ceil((high - low + 1) / width)
    return ((high - low) / bars, bars) if high > low else (1.0, 1)
