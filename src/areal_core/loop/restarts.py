"""How often a run starts again by itself, and how long it waits before.

Knows: what was lost, how many starts there were, and whether the last one made a step.
Does not know: how a run starts (`run`), or from where (`checkpoint`).
"""

from __future__ import annotations

from attrs import define

from areal_core.contract.errors import ResourceError, WorkerError

_LOST_S, _MISSING_S, _MOST_S = 1.0, 15.0, 120.0


@define
class Restarts:
    """Those of one run; `scheduler.restarts` is the most there are."""

    most: int
    number: int = 0
    """How many there were."""

    def allow(self, *, num_steps: int) -> bool:
        """Tell whether a start that made so many steps, and then lost a training worker, gets another after it.

        One that made none would end the same way again; it gets no other, unless it is the first.
        """
        return self.number < self.most and (not self.number or num_steps > 0)

    def allow_waiting(self) -> bool:
        """Tell whether a start that found too little room is tried again: where a machine was lost, one may come."""
        return 0 < self.number < self.most

    def begin(self, error: WorkerError) -> float:
        """Count one more; return the seconds to wait before it, twice as many each time, and more for machines.

        The first start after a worker was lost does not wait.
        """
        self.number += 1
        first_s = _MISSING_S if isinstance(error, ResourceError) else _LOST_S
        return min(first_s * 2.0 ** (self.number - 2), _MOST_S) if self.number > 1 else 0.0
