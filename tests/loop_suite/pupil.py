"""A training role that keeps what it is taught, and says of a batch what depends on how often it was taught.

Knows: what a learner calls of a training group.
Does not know: any model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Output, Sum, TrainReport


class Pupil:
    """Stands where a `TrainGroup` does."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.lessons: list[Batch] = []
        self.versions: list[int] = []
        self.info = EngineInfo(
            engine="pupil", engine_version="0", device="cpu", num_parameters=1, context_length=0, details={}
        )

    async def train_step(self, batch: Batch, _objective: object) -> TrainReport:
        """Keep the batch."""
        self.lessons.append(batch)
        return TrainReport(
            loss=0.0, grad_norm=1.0, lr=0.1, stepped=True, num_microbatches=1, num_tokens=batch.num_tokens, seconds=0.0,
            metrics={"sequences": Sum(value=float(batch.num_sequences), weight=1.0)},
        )  # fmt: skip

    async def forward(self, batch: Batch, output: Output) -> Tensor:
        """Return numbers that follow from the tokens and the lessons so far; 0 off the mask."""
        ids = batch.tokens["input_ids"].float()
        said = -(1.0 + len(self.lessons) + len(output.value)) * (1.0 + ids) / 100
        return torch.where(batch.tokens["loss_mask"], said, torch.zeros(()))

    async def set_version(self, version: int) -> None:
        """Keep it."""
        self.versions.append(version)
