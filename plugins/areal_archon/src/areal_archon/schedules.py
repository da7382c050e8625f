"""Pipeline schedules: which stage stands on which rank, and how many micro-batches one takes.

Knows: four schedules of `torch.distributed.pipelining` and their rules.
Does not know: models, batches, process groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD, REDUCE_GRAD

from areal_core.contract.errors import LayoutError, WrongType

Loss = Callable[[Tensor, Tensor], Tensor]
"""What the last stage returned and the number of the micro-batch -> a scalar."""

_LOOPS: Mapping[str, type[Any]] = {  # Any: torch's schedules share no public base class
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
}
SCHEDULES: tuple[str, ...] = ("1F1B", *_LOOPS)


@frozen(kw_only=True)
class Schedule:
    """How micro-batches pass `num_ranks` ranks of `num_virtual` stages each.

    Example:
        Schedule(name="Interleaved1F1B", num_ranks=2, num_virtual=2).stages(0) == (0, 2)
        Schedule(name="ZBVZeroBubble", num_ranks=2, num_virtual=2).stages(0) == (0, 3)

    Raises:
        WrongType: there is no schedule of this name.
        LayoutError: it does not take as many stages on a rank.
    """

    name: str
    num_ranks: int
    num_virtual: int = 1

    def __attrs_post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise WrongType(f"unknown pipeline schedule {self.name!r}", why=f"schedules are {', '.join(SCHEDULES)}")
        allowed = {"1F1B": 1, "ZBVZeroBubble": 2}.get(self.name, max(1, self.num_virtual))
        if self.num_virtual != allowed:
            raise LayoutError(
                f"{self.name} was given {self.num_virtual} stages on each pipeline rank",
                why=f"it takes {'at least ' if self.name not in ('1F1B', 'ZBVZeroBubble') else ''}{allowed}",
                fix=f"cut the model into {allowed} on each rank, or choose another schedule",
            )

    @property
    def num_stages(self) -> int:
        """Return into how many stages the model is cut."""
        return self.num_ranks * self.num_virtual

    @property
    def splits_backward(self) -> bool:
        """Return whether the gradients of weights are computed apart from those of inputs."""
        return self.name.endswith("ZeroBubble")

    @property
    def last_rank(self) -> int:
        """Return the pipeline rank of the last stage, which alone has columns."""
        return 0 if self.name == "ZBVZeroBubble" else self.num_ranks - 1

    def stages(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a pipeline rank, in the order of the model. Stage 0 is always on rank 0."""
        if self.name == "ZBVZeroBubble":
            return rank, self.num_stages - 1 - rank
        return tuple(range(rank, self.num_stages, self.num_ranks))

    def num_microbatches(self, count: int) -> int:
        """Return the smallest number, not under `count`, that the schedule can run."""
        if self.name.startswith("Interleaved"):
            while count % max(1, count // self.num_ranks):
                count += 1
        return count

    def build(self, stages: Sequence[PipelineStage], num_microbatches: int, loss: Loss | None) -> Any:
        """Return torch's schedule over this rank's stages; without a loss it runs forward only.

        It adds losses up as they are: nothing is averaged. Any: see `_LOOPS`.
        """
        if self.name == "1F1B":
            # GPipe is the same order where the pipeline is never full, and has no least number of micro-batches.
            kind = Schedule1F1B if loss is not None and num_microbatches >= self.num_ranks else ScheduleGPipe
            return kind(stages[0], num_microbatches, loss_fn=loss, scale_grads=False)
        schedule = _LOOPS[self.name](list(stages), num_microbatches, loss_fn=loss, scale_grads=False)
        if loss is None:
            # A V hands gradients from stage to stage on one rank, and fails where there are none.
            for action in (FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, REDUCE_GRAD):
                schedule.register_custom_function(action, _skip)
        return schedule


def _skip(action: object, context: object) -> None:
    """Do nothing where a backward pass would stand."""
