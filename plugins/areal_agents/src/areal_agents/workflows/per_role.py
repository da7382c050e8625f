"""Advantages where the trajectories of an episode are of different roles: the estimator `per_role`.

Knows: groups and roles.
Does not know: what a role does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_agents.workflows.self_play import ROLE
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError


class PerRole:
    """The reward less the mean of its role in its group, over the standard deviation of these."""

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return one advantage per trajectory, for each of its tokens [T]; 0 where a role's rewards all agree.

        Raises:
            BatchError: the workflow says of no trajectory which role it is of.
        """
        role = batch.sequences.get(ROLE, None)
        if role is None:
            raise BatchError(
                f"sequence column {ROLE!r} is missing",
                why="the estimator per_role compares trajectories of one role",
                fix=f"let the workflow set it: evolve(trajectory, sequence_extras={{{ROLE!r}: torch.tensor(0)}})",
            )
        outcome = rewards.new_zeros(batch.num_sequences).index_add(0, batch.sequence_ids, rewards)
        cells = torch.stack([batch.sequences["group"], role.to(torch.int64)], dim=1)
        _, cell, count = torch.unique(cells, dim=0, return_inverse=True, return_counts=True)
        left = outcome - _mean(outcome, cell, count)[cell]
        spread = _mean(left.square(), cell, count).sqrt()[cell]
        return torch.where(spread > 1e-6, left / (spread + 1e-4), 0.0)[batch.sequence_ids]


def _mean(values: Tensor, cell: Tensor, count: Tensor) -> Tensor:
    return values.new_zeros(len(count)).index_add(0, cell, values) / count
