"""Supervised fine-tuning with the same engines: one batch of demonstrations per step.

Knows: how demonstrations become a batch.
Does not know: which demonstrations, or what the model is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from attrs import frozen

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.train import ObjectiveSpec
from areal_core.loop.train_group import TrainGroup


@frozen(kw_only=True)
class Demonstration:
    """Token ids of a prompt and of the answer to imitate, end token included."""

    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]


def demonstrations_to_batch(demonstrations: Sequence[Demonstration]) -> Batch:
    """Pack demonstrations; the loss falls on the answers alone."""
    return Batch.pack([_episode(number, row) for number, row in enumerate(demonstrations)])


async def fine_tune(
    group: TrainGroup,
    batches: Iterable[Sequence[Demonstration]],
    on_step: Callable[[int, float], None] = lambda _step, _loss: None,
) -> int:
    """Take one optimizer step per batch, to the end of `batches`. Return the number of steps.

    `on_step` hears each step's number, from 1, and its mean loss in nats per token.
    """
    objective = ObjectiveSpec(name="sft")
    steps = 0
    for steps, rows in enumerate(batches, start=1):
        report = await group.train_step(demonstrations_to_batch(rows), objective)
        on_step(steps, report.loss)
    return steps


def _episode(number: int, row: Demonstration) -> Episode:
    ids = torch.tensor([*row.prompt_ids, *row.answer_ids], dtype=torch.int64)
    mask = torch.arange(len(ids)) >= len(row.prompt_ids)
    trajectory = Trajectory(
        input_ids=ids,
        loss_mask=mask,
        logprobs=torch.zeros(len(ids)),
        versions=torch.where(mask, 0, -1).to(torch.int32),
        reward=0.0,
        stop_reason=StopReason.STOP,
    )
    name = f"demonstration/{number}"
    return Episode(trajectories=(trajectory,), task_id=TaskId(name), group_id=GroupId(name))
