"""How much later groups may be admitted than the staleness bound allows, without a wait of the trainer that counts.

Knows: of each batch, what share of its step the trainer waited for it, and how much had finished before it was wanted.
Does not know: groups, versions or clocks.

What lies finished while the trainer trains was generated too early: it ages. When that has been so for some batches in
a row, admission moves back by half of the least of them, or by all of it where that is little. A single late batch is
borne. Two in a row, or waits that add up to more than is tolerated, move admission forward again, and make the next try
rarer.
"""

from __future__ import annotations

from collections.abc import Callable

_NOTICED = 0.01
"""Share of a step up to which a batch was there when it was wanted."""
_TOLERATED = 0.015
"""Share of its time that the trainer may wait, on average, for batches that are late now and then."""
_REMEMBERED = 64
"""Batches over which waits are averaged; the weight of older ones falls off."""
_LITTLE = 0.125
"""Batches that admission may move back by at once, when they were always spare."""
_RAREST = 64
"""Batches that are looked at before a further try, at most."""


class Pace:
    """Plain arithmetic over the batches of a run; starts as early as the bound allows."""

    def __init__(self, max_staleness: int) -> None:
        """Leave time to make one batch while another is trained on."""
        self.held_back = 0.0
        """By how many batches admission stays behind the bound, in [0, max_staleness - 1]."""
        self._most = max(0.0, max_staleness - 1.0)
        self._watched = max_staleness + 2  # what is admitted later is seen so many batches later
        self._spare: list[float] = []
        self._waited, self._late = 0.0, False

    def took(self, waited: float, spare: float) -> float:
        """Hear of a batch: the share of its step it was waited for, batches finished beside it. Return `held_back`."""
        self._waited += (waited - self._waited) / _REMEMBERED
        before, self._late = self._late, waited > _NOTICED
        if self._waited > _TOLERATED or (before and self._late):
            if self.held_back:
                self._watched = min(2 * self._watched, _RAREST)
            self.held_back = max(0.0, self.held_back - 0.25 - 2 * waited)
            self._waited, self._late, self._spare = 0.0, False, []
            return self.held_back
        self._spare.append(0.0 if self._late else spare)
        if len(self._spare) == self._watched:
            least = min(self._spare)
            self.held_back = min(self.held_back + max(least / 2, min(least, _LITTLE)), self._most)
            self._spare = []
        return self.held_back


def make_pace(max_staleness: int) -> Callable[[float, float], float]:
    """Return what hears of each batch and says how far admission stays behind: the extension `pace`."""
    return Pace(max_staleness).took
