"""Rows as sequences to train on, and those that are too long.

Knows: what each kind takes of a row; how token ids become an episode.
Does not know: columns and templates (`areal_tasks.datasets.forms`), or the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import DatasetError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.rollout.tasks import Task
from areal_tasks.datasets.encoding import FormConfig, Tokens
from areal_tasks.datasets.forms import preference, supervised

Encode = Callable[[Mapping[str, Any], Any, FormConfig, str], Sequence[Tokens]]
"""A row, a tokenizer, how rows become tokens, and the row's name in errors, to one sequence or two. Any: as there."""


def answers(
    row: Mapping[str, Any], tokenizer: Any, config: FormConfig, where: str
) -> Sequence[Tokens]:  # Any: as above
    """Return the one sequence of a row to imitate."""
    return (supervised(row, tokenizer, config, where),)


def pairs(row: Mapping[str, Any], tokenizer: Any, config: FormConfig, where: str) -> Sequence[Tokens]:  # Any: as above
    """Return the better answer and the worse one."""
    return preference(row, tokenizer, config, where)


def judged_pairs(row: Mapping[str, Any], tokenizer: Any, config: FormConfig, where: str) -> Sequence[Tokens]:
    """Return both answers with one token more, where the reward of all before is read. Any: as above.

    An engine's value of a token is read before the token is known, from the one before: the reward of a whole answer
    is the value of whatever comes after it.
    """
    return [
        Tokens([*ids, ids[-1]], [*[False] * len(ids), True]) for ids, _ in preference(row, tokenizer, config, where)
    ]


class Encoder:
    """Rows to episodes, or to none where they are too long."""

    def __init__(self, encode: Encode, tokenizer: Any, config: FormConfig, longest: int) -> None:
        """Any: a Hugging Face tokenizer. `longest` is how many tokens a sequence may have."""
        self._encode, self._tokenizer, self._config, self.longest = encode, tokenizer, config, longest

    def episode(self, task: Task) -> Episode | None:
        """Return the episode of a task, None if a sequence of it is too long.

        Raises:
            DatasetError: the row cannot be read, or there is nothing in it to learn.
        """
        where = f"row {task.task_id.rpartition('/')[2]}"
        sequences = self._encode(task.row, self._tokenizer, self._config, where)
        for ids, mask in sequences:
            if not any(mask[1:]):
                raise DatasetError(
                    f"{where} has no token to learn",
                    why="its answer is empty" if len(ids) else "it is empty",
                    fix="leave the row out of the data",
                )
        if max(len(ids) for ids, _ in sequences) > self.longest:
            return None
        made = tuple(_trajectory(tokens) for tokens in sequences)
        return Episode(trajectories=made, task_id=task.task_id, group_id=GroupId(str(task.task_id)))


def named(number: int, row: Mapping[str, Any]) -> Task:  # Any: the data set decides what a row holds
    """Return a held-out row as a task."""
    return Task(index=number, task_id=TaskId(f"held out/{number}"), row=row)


def _trajectory(tokens: Tokens) -> Trajectory:
    ids, mask = torch.tensor(tokens.ids, dtype=torch.int64), torch.tensor(tokens.loss_mask, dtype=torch.bool)
    return Trajectory(
        input_ids=ids,
        loss_mask=mask,
        logprobs=torch.zeros(len(ids)),
        versions=torch.where(mask, 0, -1).to(torch.int32),
        reward=0.0,
        stop_reason=StopReason.STOP,
    )
