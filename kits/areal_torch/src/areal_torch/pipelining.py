"""What is alike in every pipeline: how the last stage scores micro-batches, and how an error there becomes everybody's.

Knows: that a schedule must run to its end on every rank, whatever one of them raises.
Does not know: schedules.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from attrs import define
from torch import Tensor

from areal_core.contract.errors import TrainError
from areal_core.contract.train import Output
from areal_torch.step import Score


@define
class Scoring:
    """The share of each micro-batch in the loss, and 0 for those that only fill.

    The first error is kept and the schedule runs to its end, for the other ranks wait for its gradients.
    """

    score: Score
    lengths: Sequence[int]
    names: Sequence[Output]
    failure: Exception | None = None

    def share(self, number: int, columns: Tensor) -> Tensor:
        """Score one micro-batch, given its columns [outputs, T], which may be filled up behind its own tokens."""
        if number < len(self.lengths) and self.failure is None:
            try:
                own = dict(zip(self.names, columns[:, : self.lengths[number]], strict=True))
                return self.score(number, own)
            except Exception as error:  # raised again on this rank, once the others are not waiting
                self.failure = error
        return columns.sum() * 0.0

    def agree(self, pipeline: dist.ProcessGroup, last_rank: int, device: torch.device) -> None:
        """Let an error in scoring be one on every rank of the pipeline, after the schedule. Collective.

        Raises:
            TrainError: on every rank but the one that raised, which raises its own error again.
        """
        failed = torch.tensor(float(self.failure is not None), device=device)
        if pipeline.size() > 1:
            dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=pipeline)
        if self.failure is not None:
            raise self.failure
        if failed.item():
            raise TrainError(
                "a micro-batch could not be scored",
                why=f"pipeline rank {last_rank}, which has the columns, raised",
                fix="see the error of that rank",
            )
