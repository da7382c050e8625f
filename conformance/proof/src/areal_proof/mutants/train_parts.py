"""What mutants of the reference trainer are made of: ways to put another part in the place of a right one.

Knows: the parts of a started reference trainer.
Does not know: defects; they are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import (
    EngineInfo,
    Objective,
    OptimizerSpec,
    Output,
    RankContext,
    Sum,
    TrainReport,
    TrainSpec,
)
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.export import Exporter, FolderWeights
from areal_torch.optimizer import Optimizer


class Through:
    """An objective that passes everything on to another. Subclasses change one thing."""

    def __init__(self, inner: Objective) -> None:
        self.inner = inner
        self.outputs: frozenset[Output] = inner.outputs
        self.columns: frozenset[str] = inner.columns

    def normalizer(self, batch: Batch) -> Tensor:
        """Pass on."""
        return self.inner.normalizer(batch)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Pass on."""
        return self.inner.loss(columns, batch, normalizer)


class Columns:
    """A model that passes everything on to another. Subclasses change the columns."""

    def __init__(self, inner: Any) -> None:  # Any: the engine's own model
        self.inner = inner

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Pass on."""
        result: Mapping[str, Tensor] = self.inner.columns(batch, outputs)
        return result

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Pass on."""
        self.inner.backward(loss, last=last)


def replace(engine: ReferenceTrainEngine, **parts: Any) -> None:
    """Put other parts into a started engine. Any: fields of Trainer."""
    assert engine.trainer is not None
    engine.trainer = attrs.evolve(engine.trainer, **parts)


def replace_model(engine: ReferenceTrainEngine, kind: type[Columns]) -> None:
    """Wrap the model of a started engine."""
    assert engine.trainer is not None
    replace(engine, model=kind(engine.trainer.model))


def replace_optimizer(engine: ReferenceTrainEngine, kind: type[Optimizer], spec: OptimizerSpec | None) -> None:
    """Give a started engine another optimizer, if its role has one."""
    if spec is None:
        return
    assert engine.trainer is not None
    state = engine.trainer.state
    optimizer = kind(state.parameters, spec)
    replace(engine, optimizer=optimizer, state=attrs.evolve(state, optimizer=optimizer))


def replace_exporter(engine: ReferenceTrainEngine, kind: type[Exporter]) -> None:
    """Give a started engine another exporter, of the same model."""
    assert engine.trainer is not None
    old = engine.trainer.exporter
    new = kind(old.weights, old.folder, old.dtype, old.group)
    replace(engine, exporter=new)


def hugging_face(engine: ReferenceTrainEngine) -> Any:
    """Return the transformers model of a started engine. Any: not typed here."""
    assert engine.trainer is not None
    weights = engine.trainer.exporter.weights
    assert isinstance(weights, FolderWeights)
    return weights.model


def parameters(engine: ReferenceTrainEngine) -> dict[str, Tensor]:
    """Return the parameters of a started engine."""
    assert engine.trainer is not None
    return dict(engine.trainer.state.parameters)


class OtherObjective(ReferenceTrainEngine):
    """The reference trainer, which hands its objective something else. No defect by itself."""

    through: type[Through] = Through

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Step with the objective wrapped."""
        return super().train_step(batch, self.through(objective))


class OtherModel(ReferenceTrainEngine):
    """The reference trainer, whose model is seen through. Not a defect by itself."""

    kind: ClassVar[type[Columns]] = Columns

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then wrap the model."""
        info = super().start(spec, rank)
        replace_model(self, self.kind)
        return info


class OtherExporter(ReferenceTrainEngine):
    """The reference trainer with another exporter. No defect by itself."""

    kind: ClassVar[type[Exporter]] = Exporter

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then take the other exporter."""
        info = super().start(spec, rank)
        replace_exporter(self, self.kind)
        return info
