"""How much later groups may be admitted than the staleness bound allows, without a wait of the trainer for them.

Knows: of each batch, what share of its step the trainer waited for it, and how much had finished before it was wanted.
Does not know: groups, versions or clocks.

What lies finished while the trainer trains was generated too early: it ages. When that has been so for some batches in
a row, admission moves back by half of the least of them. A wait moves it forward again, and makes the next try rarer.
"""

from __future__ import annotations

from collections.abc import Callable

_TOLERATED = 0.01
"""Share of a step that the trainer may wait without admission moving forward."""
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

    def took(self, waited: float, spare: float) -> float:
        """Hear of a batch: the share of its step it was waited for, batches finished beside it. Return `held_back`."""
        if waited > _TOLERATED:
            if self.held_back:
                self._watched = min(2 * self._watched, _RAREST)
            self.held_back = max(0.0, self.held_back - 0.25 - 2 * waited)
            self._spare = []
            return self.held_back
        self._spare.append(spare)
        if len(self._spare) == self._watched:
            self.held_back = min(self.held_back + min(self._spare) / 2, self._most)
            self._spare = []
        return self.held_back


def make_pace(max_staleness: int) -> Callable[[float, float], float]:
    """Return what hears of each batch and says how far admission stays behind: the extension `pace`."""
    return Pace(max_staleness).took
