"""Numbers over the steps of a run, thinned as they come: a run of any length fits into the same memory.

Knows: how neighbours become one point, and how totals become rates.
Does not know: where numbers come from, or what they mean.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence

MAX_POINTS = 400
MAX_NAMES = 300
"""Metrics of one run; a file with more of them is not ours."""
MAX_NAME = 200
"""Characters of a metric's name."""

Point = tuple[float, float]


class Series:
    """Means over equally many records each; that number doubles whenever there are too many points."""

    def __init__(self) -> None:
        self._stride = 1
        self._steps, self._values = array("d"), array("d")
        self._open: tuple[float, float, int] = (0.0, 0.0, 0)
        """Sums of the last point's steps and values while records are missing, and how many it has."""

    def add(self, step: int, value: float) -> None:
        """Take one more record's value."""
        steps, values, count = self._open
        self._open = (steps + step, values + value, count + 1)
        if count + 1 == self._stride:
            self._close()

    def points(self) -> list[Point]:
        """Return (mean step, mean value) of each point, oldest first."""
        steps, values, count = self._open
        last = [(steps / count, values / count)] if count else []
        return [*zip(self._steps, self._values, strict=True), *last]

    def _close(self) -> None:
        steps, values, count = self._open
        self._steps.append(steps / count)
        self._values.append(values / count)
        self._open = (0.0, 0.0, 0)
        if len(self._steps) == MAX_POINTS:
            self._steps, self._values = _halved(self._steps), _halved(self._values)
            self._stride *= 2


def _halved(column: array[float]) -> array[float]:
    return array("d", [(one + other) / 2 for one, other in zip(column[::2], column[1::2], strict=True)])


class Curves:
    """Every number of a run's metrics, by name."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def add(self, step: int, values: Iterator[tuple[str, float]]) -> None:
        """Take one step's numbers."""
        for name, value in values:
            if name not in self._series:
                if len(self._series) >= MAX_NAMES:
                    continue
                self._series[name] = Series()
            self._series[name].add(step, value)

    def names(self) -> Sequence[str]:
        """Return the metrics there are, in the order they came."""
        return tuple(self._series)

    def points(self, name: str) -> list[Point]:
        """Return a metric's points; none if there is no such metric."""
        return self._series[name].points() if name in self._series else []

    def rate(self, total: str, clock: str = "wall_s") -> list[Point]:
        """Return how much a running total grew per second, over windows of a twentieth of the time.

        Totals are read now and then, not at every step: a rate from one step to the next says nothing.
        """
        seconds = dict(self.points(clock))
        known = [(step, seconds[step], value) for step, value in self.points(total) if step in seconds]
        if len(known) < 2:
            return []
        spent = known[-1][1] - known[0][1]
        window = max(spent / 20, min(5.0, spent / 4))
        found, first = list[Point](), 0
        for number, (step, now, value) in enumerate(known):
            if number and now < known[number - 1][1]:  # the counts began anew
                first = number
            while first + 1 < number and now - known[first + 1][1] >= window:
                first += 1
            _, before, less = known[first]
            if now - before >= window and value >= less:
                found.append((step, (value - less) / (now - before)))
        return found


def numbers(record: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a record by name; names are cut, what is no number is left out."""
    for name, value in record.items():
        if isinstance(value, bool | int | float) and -1e300 < value < 1e300 and not math.isnan(value):
            yield name[:MAX_NAME], float(value)


def smoothed(points: Sequence[Point], share: float) -> list[Point]:
    """Return means over a window of a share of the points, centred where it can be."""
    half = int(len(points) * share / 2)
    if not half:
        return list(points)
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    edges = ((max(0, n - half), min(len(points), n + half + 1)) for n in range(len(points)))
    return [(x, (sums[high] - sums[low]) / (high - low)) for (x, _), (low, high) in zip(points, edges, strict=True)]
