"""Which finished groups are trained on, and when too few are.

Knows: the function that `rollout.accept` names, and how many groups it left out since the last batch.
Does not know: what takes their place, or how a group is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from areal_core.contract.data import Episode
from areal_core.contract.errors import RolloutError
from areal_core.plugins.blame import told
from areal_core.rollout.groups import EpisodeGroup

Accept = Callable[[Sequence[Episode]], bool]


class Acceptance:
    """Asks for every finished group, also for one kept over a resume; without a function all are taken."""

    def __init__(self, accept: Accept | None, *, tries: int, capacity: int) -> None:
        """Let `tries` groups be left out for each of the `capacity` groups that may be in flight."""
        self._accept, self._tries, self._capacity = accept, tries, capacity
        self._left_out = 0

    def takes(self, group: EpisodeGroup) -> bool:
        """Tell whether a group is trained on.

        Raises:
            RolloutError: the function raised.
        """
        if self._accept is None:
            return True
        try:
            return bool(self._accept(group.episodes))
        except Exception as error:
            raise RolloutError(
                f"rollout.accept raised for group {group.task.task_id}",
                why=told(error),
                fix="it is given the episodes of a finished group and returns whether they are trained on",
            ) from error

    def left_out(self) -> RolloutError | None:
        """Count a group that was not taken; return what ends the run where they were too many since the last batch."""
        self._left_out += 1
        if self._left_out < self._tries * self._capacity:
            return None
        return RolloutError(
            f"rollout.accept left out {self._left_out} groups since the last batch",
            why=f"rollout.accept_tries is {self._tries}, and {self._capacity} groups may be in flight: "
            "hardly any prompt gives a group to train on",
            fix="take prompts that are neither too easy nor too hard, a larger rollout.group_size, "
            "or raise rollout.accept_tries",
        )

    def batch(self) -> None:
        """Begin to count anew: a batch was handed over."""
        self._left_out = 0
