"""A started reference trainer, and what tests give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from areal_core.contract.batch import Batch
from areal_core.contract.train import (
    OptimizerSpec,
    RankContext,
    TrainReport,
    TrainSpec,
)
from areal_reference.train.config import ReferenceTrainConfig
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.testing.batches import make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient
from areal_torch.trainer import running

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]


RANK = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="unused")


def started(model: Path, config: ReferenceTrainConfig | None = None, **spec: Any) -> ReferenceTrainEngine:
    engine = ReferenceTrainEngine(config)
    defaults = {"role": "actor", "model_path": str(model), "optimizer": OptimizerSpec(lr=1e-2)}
    engine.start(TrainSpec(**{**defaults, **spec}), RANK)
    return engine


def data(rows: list[int] | None = None) -> Batch:
    batch = make_batch(SHAPES)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    batch = batch.with_tokens(advantages=noise, returns=noise.flip(0))
    return batch if rows is None else batch.select(rows)


def gradient(engine: ReferenceTrainEngine, batch: Batch) -> tuple[TrainReport, torch.Tensor]:
    """Return the report, and the gradient as AdamW's first moment tells it when betas[0] is 0."""
    report = engine.train_step(batch, PolicyGradient())
    optimizer = running(engine.trainer).optimizer
    assert optimizer is not None
    moments = optimizer.moments["exp_avg"]
    return report, torch.cat([moments[name].flatten() for name in sorted(moments)])


def sent(engine: ReferenceTrainEngine, **options: Any) -> MemorySink:
    sink = MemorySink(**options)
    engine.send_weights(sink, 1)
    return sink
