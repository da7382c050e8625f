"""How many mutants die, and how sure a sample makes that.

Knows: Wilson's interval.
Does not know: mutants; it is given numbers.
"""

from __future__ import annotations

import math

from attrs import frozen

_Z = 1.959964
"""Quantile of the normal distribution for 95% between two bounds."""


@frozen
class Score:
    """Of `total` mutants that should die, `killed` did."""

    killed: int
    total: int

    @property
    def rate(self) -> float:
        """Return the share that died; 1 where there was none."""
        return self.killed / self.total if self.total else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95% interval of the share among all mutants, of which these are a sample."""
        if not self.total:
            return 0.0, 1.0
        n, rate, square = self.total, self.rate, _Z * _Z
        middle = (rate + square / (2 * n)) / (1 + square / n)
        half = _Z / (1 + square / n) * math.sqrt(rate * (1 - rate) / n + square / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        """Return `31 of 40, 77.5% (62.5 to 87.7)`."""
        low, high = self.interval
        return f"{self.killed} of {self.total}, {100 * self.rate:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
