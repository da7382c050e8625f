"""The stages of one rank driven by Megatron's schedules, as `areal_torch.step` drives a model.

Knows: one pass after another, 1F1B, and interleaved 1F1B; when gradients begin and end.
Does not know: what a stage computes, losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output
from areal_megatron.gradients import Gradients
from areal_megatron.library import get_forward_backward_func
from areal_megatron.packing import Pass, passes
from areal_megatron.ranks import Ranks
from areal_megatron.stage import ModelStage
from areal_torch.pipelining import Scoring
from areal_torch.step import Columns, Score

Numbered = tuple[int, Pass]


@frozen(kw_only=True, eq=False)
class ScheduledModel:
    """All stages of this rank, in order. `gradients` is None for a frozen role."""

    stages: Sequence[ModelStage]
    ranks: Ranks
    gradients: Gradients | None
    tied: bool
    device: torch.device

    def accumulate(self, parts: Sequence[Batch], outputs: frozenset[Output], score: Score) -> None:
        """Add the gradient of every micro-batch; call `score` where the last stage is, in order. Collective.

        Raises:
            TrainError: on every rank of this pipeline but the one where `score` raised its own error.
        """
        if not parts or self.gradients is None:
            return
        scoring = Scoring(score, [part.num_tokens for part in parts], sorted(outputs))
        self.gradients.begin()
        self._run(passes(parts, self.ranks, alike=self._alike), outputs, scoring)
        scoring.agree(self.ranks.pipeline, self.ranks.degrees["p"] - 1, self.device)
        self.gradients.finish(tied=self.tied and self.ranks.degrees["p"] > 1)

    @torch.no_grad()
    def columns_of(self, parts: Sequence[Batch], outputs: frozenset[Output]) -> Sequence[Columns]:
        """Return the columns of every micro-batch, equal on every rank of the pipeline. Collective."""
        if not parts:
            return []
        names, pipeline = sorted(outputs), self.ranks.pipeline
        found = self._run(passes(parts, self.ranks, alike=self._alike), outputs, None)
        if pipeline.size() > 1:
            sizes = [part.num_tokens for part in parts]
            joined = torch.empty(len(names), sum(sizes), device=parts[0].device)
            if found:
                joined.copy_(torch.cat(found[: len(parts)], 1))
            dist.broadcast(joined, group=pipeline, group_src=pipeline.size() - 1)
            found = list(torch.split(joined, sizes, 1))
        return [dict(zip(names, columns, strict=True)) for columns in found]

    @property
    def _alike(self) -> int:
        """Return what the number of passes is a multiple of, if they must be of one size: interleaving takes turns."""
        pipeline = self.ranks.degrees["p"]
        if pipeline == 1:
            return 0
        return pipeline if len(self.stages) > 1 else 1

    def _run(self, every: Sequence[Pass], outputs: frozenset[Output], scoring: Scoring | None) -> list[Tensor]:
        """Run one schedule; return what the last stage collected, nothing elsewhere."""
        by_model = {id(stage.model): stage for stage in self.stages}

        def step(numbered: Iterator[Numbered], model: Any) -> tuple[Tensor, Any]:  # Any: megatron is not typed
            number, current = next(numbered)
            made = by_model[id(model)].run(current, outputs)
            return made, partial(_judged, scoring, number)

        numbered = [iter(list(enumerate(every))) for _ in self.stages]
        models = [stage.model for stage in self.stages]
        schedule = get_forward_backward_func()
        result: list[Tensor] = schedule(
            forward_step_func=step,
            data_iterator=numbered if len(models) > 1 else numbered[0],
            model=models if len(models) > 1 else models[0],
            num_microbatches=len(every),
            seq_length=every[0].num_slots,
            micro_batch_size=1,
            forward_only=scoring is None,
            collect_non_loss_data=scoring is None,
        )
        return result if scoring is None else []


def _judged(
    scoring: Scoring | None, number: int, columns: Tensor, non_loss_data: bool = False
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return what a schedule wants of the last stage: columns to collect, or a loss that it must not scale."""
    if scoring is None:
        return columns
    return scoring.share(number, columns), torch.zeros((), dtype=torch.int), None
