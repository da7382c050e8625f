"""What mutants of the reference trainer are made of: ways to put another part in the place of a right one.

Knows: the parts of a started reference trainer.
Does not know: defects; they are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import (
    ROUTED_EXPERTS,
    EngineInfo,
    Objective,
    OptimizerSpec,
    Output,
    RankContext,
    Sum,
    TrainReport,
    TrainSpec,
)
from areal_proof.mutants.rows import put
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.export import Exporter, FolderWeights
from areal_torch.optimizer import Optimizer
from areal_torch.trainer import running


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


def replaced(engine: ReferenceTrainEngine, **parts: Any) -> AbstractContextManager[None]:
    """Put other parts into a started engine, and take them back. Any: fields of Trainer."""
    return put(engine, trainer=attrs.evolve(running(engine.trainer), **parts))


@contextmanager
def filled(tensors: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """Give tensors other numbers, and take them back."""
    before = copied(tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(numbers[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers of tensors, as they are now."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def without_routes(batch: Batch) -> Batch:
    """Return a batch that tells nothing of experts."""
    tokens = {str(name): column for name, column in batch.tokens.items() if name != ROUTED_EXPERTS}
    return Batch.of(tokens, {str(name): column for name, column in batch.sequences.items()}, batch.lengths)


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


def exporter_of(engine: ReferenceTrainEngine) -> Exporter:
    """Return what a started engine sends and saves with."""
    assert engine.trainer is not None
    return engine.trainer.exporter


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
