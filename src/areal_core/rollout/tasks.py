"""Which prompt comes next: every row once per epoch, in a seeded order, across resumes.

Knows: the data set's length and order, which tasks were used.
Does not know: what happens to a task; rejected ones count as used, failed ones come again after a resume.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_core.contract.errors import DatasetError
from areal_core.contract.ids import TaskId

_SAMPLED = 32
"""Rows looked at to tell one data set from another."""


@frozen(kw_only=True)
class Task:
    """One prompt of one epoch.

    Example: Task(index=41, task_id="train/1/9", row={"prompt": "stone>"})     # row 9 in the second epoch of 32 rows

    `index` counts tasks over the whole run; `attempt` counts how often this one was issued again.
    """

    index: int
    task_id: TaskId
    row: Mapping[str, Any]  # Any: the data set decides what a row holds
    attempt: int = 0


class TaskSource:
    """Endless tasks over a data set: each epoch is one permutation of its rows."""

    def __init__(self, dataset: Sequence[Mapping[str, Any]], *, seed: int, shuffle: bool = True) -> None:
        """Start before the first task of epoch 0.

        Raises:
            DatasetError: the data set is empty.
        """
        if not len(dataset):
            raise DatasetError("the data set has no rows", fix="check data.name and data.options")
        self._dataset = dataset
        self._seed = seed
        self._shuffle = shuffle
        self._next = 0
        self._frontier = 0
        self._used: set[int] = set()
        self._again: list[int] = []
        self._held: set[int] = set()
        self._failed: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._order: tuple[int, Sequence[int]] = (-1, ())

    def __len__(self) -> int:
        """Return how many tasks make an epoch."""
        return len(self._dataset)

    def next(self) -> Task:
        """Return the next task: one to be issued again first, in index order, then a new one."""
        if self._again:
            return self.task(heapq.heappop(self._again))
        self._next = max(self._next, self._frontier)  # which passes what is used where the first one held is
        while self._next in self._used or self._next in self._held:
            self._held.discard(self._next)
            self._next += 1
        self._next += 1
        return self.task(self._next - 1)

    def hold(self, task: Task) -> None:
        """Keep a task back whose episodes are there already: it is not issued, and used later."""
        self._held.add(task.index)
        if task.attempt:
            self._attempts[task.index] = task.attempt

    def is_used(self, index: int) -> bool:
        """Tell whether a task is done with for good."""
        return index not in self._failed and (index < self._frontier or index in self._used)

    def fail(self, index: int) -> None:
        """Record that a task failed: it is not issued again before a resume."""
        if index not in self._failed:
            self.use(index)
            self._failed.add(index)

    def use(self, index: int) -> None:
        """Record that a task is done with for good: trained on or rejected."""
        assert not self.is_used(index), f"task {index} used twice"
        if index in self._failed:  # before the resume; its place was passed then
            self._failed.remove(index)
            return
        self._used.add(index)
        self._held.discard(index)
        self._attempts.pop(index, None)
        while self._frontier in self._used:
            self._used.remove(self._frontier)
            self._frontier += 1

    def issue_again(self, index: int) -> None:
        """Put a task back that was dropped; it comes next, as a new attempt."""
        self._attempts[index] = self._attempts.get(index, 0) + 1
        heapq.heappush(self._again, index)

    def state(self) -> dict[str, Any]:
        """Return what a resume needs, as plain data: used are those below `frontier` and in `used`, but not `failed`.

        Any: values are int, bool, list and dict.
        """
        return {
            **self._identity(),
            "frontier": self._frontier,
            "used": sorted(self._used),
            "failed": sorted(self._failed),
            "attempts": {str(index): count for index, count in sorted(self._attempts.items())},
        }

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same after a resume. Any: plain data."""
        return {
            "rows": len(self._dataset),
            "sample": _sample(self._dataset),
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`: tasks that failed are issued again first, then those outstanding, in index order.

        Raises:
            DatasetError: the data set has another length or other rows, or the order another seed.
        """
        for key, value in self._identity().items():
            if state.get(key, value) != value:
                other = f"has {key} {value}, the saved run had {state[key]}"
                raise DatasetError(
                    f"the data set {'holds other rows than the saved run had' if key == 'sample' else other}",
                    why="the order of the prompts would be another, so some would be trained twice and some never",
                    fix="resume with the same data, seed and data.shuffle, or start a new run",
                )
        self._frontier = self._next = int(state["frontier"])
        self._used = {int(index) for index in state["used"]}
        self._attempts = {int(index): int(count) for index, count in state["attempts"].items()}
        self._failed = {int(index) for index in state.get("failed", ())}
        self._again = sorted(self._failed)
        self._attempts |= {index: self._attempts.get(index, 0) + 1 for index in self._failed}

    def task(self, index: int, attempt: int | None = None) -> Task:
        """Return the task of an index, as the attempt it is at if none is given; issues nothing."""
        epoch, place = divmod(index, len(self._dataset))
        row = self._order_of(epoch)[place]
        if attempt is None:
            attempt = self._attempts.get(index, 0)
        return Task(index=index, task_id=TaskId(f"train/{epoch}/{row}"), row=self._dataset[row], attempt=attempt)

    def _order_of(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self._dataset))
        if self._order[0] != epoch:
            order = list(range(len(self._dataset)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1]


def _sample(dataset: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of some rows, spread evenly: enough to notice another data set, cheap for any."""
    step = max(1, len(dataset) // _SAMPLED)
    digest = hashlib.blake2b(digest_size=8)
    for index in range(0, len(dataset), step):
        digest.update(json.dumps(dict(dataset[index]), sort_keys=True, default=lambda value: str(type(value))).encode())
    return digest.hexdigest()
