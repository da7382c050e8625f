"""Each prompt once per epoch: which were trained on twice, and which were passed over.

    counted = count_prompts(read_lines(run / "events.jsonl"), journal.resumed_at)

Knows: the events of batches, of groups that failed or were rejected, and where each resume began; how a task is named.
Does not know: the data set, or what is in flight: a prompt that never came back from a worker was not passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from areal_core.observe.events import RUN_ENDED, RUN_RESTARTED, RUN_STARTED

Event = Mapping[str, Any]  # Any: the writer's fields
MAX_BYTES = 1 << 20
"""Kept of epochs, a byte per prompt and some for each epoch; the newest is kept whatever its size."""
MAX_ROWS = 1 << 24
"""A larger number is no row of a data set."""
_EPOCH_BYTES = 200
_UNKNOWN, _TRAINED, _MISSING, _REJECTED = range(4)
_Prompt = tuple[int, int]  # epoch and row


@frozen(kw_only=True)
class Counted:
    """What became of the prompts of a run. Example: Counted(lost=0, twice=0)"""

    lost: int
    """Prompts that failed, or whose step a resume took back, and that were neither trained on nor rejected since."""
    twice: int
    """Prompts trained on once more in an epoch that had trained on them."""


def count_prompts(events: Iterable[Event], resumed_at: Sequence[int]) -> Counted | None:
    """Return what a run made of its prompts, None if its events do not name them as tasks are named.

    Args:
        resumed_at: the version at which each start but the first went on.
    """
    found = _Prompts()
    try:
        _count(events, resumed_at, found)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Counted(lost=found.lost, twice=found.twice)


def _count(events: Iterable[Event], resumed_at: Sequence[int], found: _Prompts) -> None:
    starts, handed = -1, _Batch()
    for event in events:
        kind = event.get("kind")
        if kind == "batch_handed_over":
            handed.end(found, trained=handed.version < event["version"])
            # What a later resume took back was trained on by nobody.
            back_to = min(resumed_at[max(starts, 0) :], default=math.inf)
            handed = _Batch(event["version"], [_prompt(each) for each in event["task_ids"]])
            if handed.version >= back_to:
                handed.end(found, trained=False)
        elif kind == "checkpoint":
            if handed.version < event["version"]:
                handed.end(found, trained=True)
        elif kind in (RUN_STARTED, RUN_RESTARTED):
            starts += 1
            handed.end(found, trained=True)
        elif kind == RUN_ENDED and event.get("status") == "finished":
            handed.end(found, trained=True)
        elif kind == "group_failed":
            found.miss(_prompt(event["task_id"]))
        elif kind == "group_rejected":
            found.reject(_prompt(event["task_id"]))


@define
class _Batch:
    """What was handed over last; only what comes after it tells whether its update ended."""

    version: int = -1
    prompts: Sequence[_Prompt] = ()

    def end(self, found: _Prompts, *, trained: bool) -> None:
        for prompt in self.prompts:
            (found.train if trained else found.miss)(prompt)
        self.prompts = ()


@define
class _Prompts:
    """Prompts by epoch, a byte each. What an epoch left out when it was let go of stays counted as lost."""

    twice: int = 0
    lost: int = 0
    _epochs: dict[int, bytearray] = field(factory=dict)
    _size: int = 0
    _over: int = 0
    """Epochs below are not kept any more."""

    def train(self, prompt: _Prompt) -> None:
        self.twice += self._settle(prompt, _TRAINED) == _TRAINED

    def reject(self, prompt: _Prompt) -> None:
        self._settle(prompt, _REJECTED)

    def miss(self, prompt: _Prompt) -> None:
        rows, row = self._rows(prompt)
        if rows and rows[row] not in (_TRAINED, _MISSING):
            rows[row], self.lost = _MISSING, self.lost + 1

    def _settle(self, prompt: _Prompt, now: int) -> int:
        """Return what a prompt was before."""
        rows, row = self._rows(prompt)
        if not rows:
            return _UNKNOWN
        before, rows[row] = rows[row], now
        self.lost -= before == _MISSING
        return before

    def _rows(self, prompt: _Prompt) -> tuple[bytearray, int]:
        """Return the epoch of a prompt, empty if it is not kept, and the prompt's place in it."""
        epoch, row = prompt
        if epoch < self._over:
            return bytearray(), row
        rows = self._epochs.get(epoch)
        if rows is None:
            rows = self._epochs[epoch] = bytearray()
            self._size += _EPOCH_BYTES
        if row >= len(rows):
            more = row + 1 - len(rows) + len(rows) // 8
            rows.extend(bytes(more))
            self._size += more
        while self._size > MAX_BYTES and (oldest := next(iter(self._epochs))) < epoch:
            self._size -= _EPOCH_BYTES + len(self._epochs.pop(oldest))
            self._over = max(self._over, oldest + 1)
        return rows, row


def _prompt(task_id: str) -> _Prompt:
    """Return epoch and row of a task. Example: "train/1/9" -> (1, 9)"""
    _, epoch, row = task_id.split("/")
    if not 0 <= int(row) < MAX_ROWS:
        raise ValueError(row)
    return int(epoch), int(row)
