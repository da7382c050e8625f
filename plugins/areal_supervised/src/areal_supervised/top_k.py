"""A teacher that names its most probable tokens, and the column of them a step needs.

Knows: who can name them: a frozen training role, or a server.
Does not know: the loss (`divergence`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, Output
from areal_core.loop.train_group import TrainGroup
from areal_supervised.divergence import TEACHER
from areal_supervised.learning import Sums


class NamesTokens(Protocol):
    """A teacher of `top_k`."""

    async def most_probable(self, batch: Batch, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` most probable tokens at each place, int32 [T, count], and their log-probs."""


class TeacherRole:
    """A frozen training role that claims `candidates`."""

    def __init__(self, group: TrainGroup) -> None:
        self._group = group

    async def most_probable(self, batch: Batch, count: int) -> tuple[Tensor, Tensor]:
        """Ask it for them in one forward pass."""
        asked = batch.with_tokens(**{CANDIDATES: torch.full((batch.num_tokens, count), -1, dtype=torch.int32)})
        ids, logprobs = await self._group.columns(asked, CANDIDATES, Output.CANDIDATE_LOGPROBS.value)
        return ids, logprobs


class TopK:
    """Satisfies `areal_supervised.learning.Method`: before a step the teacher names tokens and judges them."""

    def __init__(self, teacher: NamesTokens, count: int) -> None:
        self._teacher, self._count = teacher, count

    async def prepared(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> tuple[Batch, Sums]:
        """Return the batch with `candidates` and `teacher_logprobs`."""
        ids, logprobs = await self._teacher.most_probable(batch, self._count)
        return batch.with_tokens(**{CANDIDATES: ids, TEACHER: logprobs}), {}

    async def measured(self, actor: TrainGroup, reference: TrainGroup | None, batch: Batch) -> Sums:
        """Return nothing: what a run of this kind evaluates is generated."""
        return {}
