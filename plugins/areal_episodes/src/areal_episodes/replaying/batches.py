"""The batches of a run, from its store: the same groups in the same order in the same steps.

Knows: what a step was trained on, and what a resume would ask of who handed it over.
Does not know: how batches are trained on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.ids import TaskId
from areal_core.plugins.episodes import KeptGroup
from areal_core.rollout.groups import EpisodeGroup, kept_group, stamped
from areal_core.rollout.stats import Counts, RolloutStats
from areal_core.rollout.tasks import Task
from areal_episodes.columns import episode
from areal_episodes.reader import Reader


class StoredBatches:
    """Satisfies `areal_core.loop.train_loop.Batches`. One step's episodes are in memory at a time."""

    def __init__(self, folder: Path, *, version: int, tasks: Mapping[str, Any]) -> None:
        """Begin with the step after `version`; `tasks` is the state of a checkpoint there. Any: plain data."""
        self._folder, self._version = folder, version
        before = tasks.get("tasks", {})
        self._identity = {key: value for key, value in before.items() if key not in ("frontier", "used")}
        self._frontier, self._used = int(before.get("frontier", 0)), set(before.get("used", ()))
        self._counts = Counts()

    async def next_batch(self) -> Sequence[EpisodeGroup]:
        """Return the groups of the next step, in task order.

        Raises:
            StorageError: they cannot be read.
        """
        groups = await asyncio.to_thread(read_step, self._folder, self._version + 1)
        groups = [stamped(group, self._version) for group in groups]
        self._counts.admitted += len(groups)
        self._counts.hand_over(groups)
        self._used.update(group.task.index for group in groups)
        while self._frontier in self._used:
            self._used.remove(self._frontier)
            self._frontier += 1
        return groups

    def set_version(self, version: int) -> None:
        """Go on to the step after `version`."""
        self._version = version

    def state(self) -> Mapping[str, Any]:
        """Return what a run that goes on from here with generating needs: which tasks were trained. Any: plain data."""
        used = {"frontier": self._frontier, "used": sorted(self._used)}
        return {"version": self._version, "tasks": {"attempts": {}, **self._identity, **used}}

    def stats(self) -> RolloutStats:
        """Return the counts so far."""
        counts = self._counts
        return RolloutStats(
            version=self._version,
            running=0,
            buffered=0,
            admitted=counts.admitted,
            consumed=counts.consumed,
            rejected=0,
            failed=0,
            dropped=0,
            evaluated=0,
            tokens_generated=0,
            reward_sum=counts.reward_sum,
            episodes_consumed=counts.episodes_consumed,
            max_staleness_seen=counts.max_staleness_seen,
            last_staleness=dict(counts.last_staleness),
            last_lengths=tuple(counts.last_lengths),
        )


def read_step(folder: Path, step: int) -> list[EpisodeGroup]:
    """Return the groups a step was trained on, as they were handed over.

    Raises:
        StorageError: the store cannot be read, or is damaged.
    """
    members: dict[tuple[int, int], dict[int, tuple[Mapping[str, Any], Any]]] = defaultdict(dict)
    with Reader(folder) as reader:
        for facts, trajectories in reader.trained(step):
            members[facts["task_index"], facts["attempt"]][facts["member"]] = (facts, trajectories)
    groups = []
    for (index, attempt), found in sorted(members.items()):
        ordered = [found[member] for member in sorted(found)]
        task_id = str(ordered[0][0]["task_id"])
        kept = KeptGroup(
            task_index=index,
            attempt=attempt,
            episodes=tuple(episode(columns, task_id, facts["parts"]) for facts, columns in ordered),
        )
        groups.append(kept_group(kept, Task(index=index, task_id=TaskId(task_id), row={}, attempt=attempt)))
    return groups
