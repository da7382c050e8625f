"""What an engine is made of once it has started, and every call of the contract that needs it.

Knows: which shared part answers which call.
Does not know: how the model was built or cut; the engine's `start` puts these parts together.
"""

from __future__ import annotations

from pathlib import Path

import torch
from attrs import frozen

from areal_core.contract.batch import Batch
from areal_core.contract.errors import TrainError
from areal_core.contract.train import Objective, Output, TrainReport
from areal_core.contract.weights import Receipt, WeightSink
from areal_torch import step
from areal_torch.export import Exporter
from areal_torch.group import RankGroup, agree
from areal_torch.offload import DeviceMemory
from areal_torch.optimizer import Optimizer
from areal_torch.resume import TrainingState


@frozen(kw_only=True, eq=False)
class Trainer:
    """One rank. `optimizer` is None for a frozen role."""

    model: step.Model | step.Pipeline
    optimizer: Optimizer | None
    group: RankGroup
    device: torch.device
    limits: step.Limits
    exporter: Exporter
    state: TrainingState
    memory: DeviceMemory

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """See `TrainEngine.train_step`."""
        if self.optimizer is None:
            raise TrainError("train_step on a frozen role", why="its spec has no optimizer", fix="give it one")
        return step.train_step(self.model, self.optimizer, self.group, self.device, self.limits, batch, objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """See `TrainEngine.forward`."""
        return step.forward(self.model, self.group, self.device, self.limits, batch, outputs)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """See `TrainEngine.send_weights`."""
        return self.exporter.send(sink, version)

    def save_weights(self, path: Path) -> None:
        """See `TrainEngine.save_weights`."""
        self.exporter.save(Path(path))

    def save_state(self, path: Path, version: int) -> None:
        """See `TrainEngine.save_state`."""
        self.state.save(Path(path), version)

    def begin_state(self, path: Path, version: int) -> None:
        """See `SupportsBackgroundState.begin_state`."""
        self.state.begin(Path(path), version)

    def state_written(self) -> bool:
        """See `SupportsBackgroundState.state_written`."""
        return self.state.background.written

    def finish_state(self) -> None:
        """See `SupportsBackgroundState.finish_state`."""
        self.state.background.finish()

    def load_state(self, path: Path) -> int:
        """See `TrainEngine.load_state`; returns the version saved."""
        return self.state.load(Path(path))

    def offload(self) -> None:
        """See `SupportsOffload.offload`. Collective: if one rank has no room elsewhere, all keep their memory."""
        try:
            agree(self.group, self.memory.offload)
        except BaseException:
            self.memory.onload()
            raise

    def onload(self) -> None:
        """See `SupportsOffload.onload`."""
        self.memory.onload()

    def close(self) -> None:
        """Forget what waits off the device, and drop a state that was begun. Idempotent."""
        self.state.background.drop()
        self.memory.drop()


def running(trainer: Trainer | None) -> Trainer:
    """Return the trainer of a started engine whose weights are on the device.

    Raises:
        TrainError: `start` was not called, or `close` was, or `offload` last.
    """
    trainer = started(trainer)
    if trainer.memory.away:
        raise TrainError("weights and optimizer are off the device", why="offload was called", fix="call onload first")
    return trainer


def started(trainer: Trainer | None) -> Trainer:
    """Return the trainer of a started engine.

    Raises:
        TrainError: `start` was not called, or `close` was.
    """
    if trainer is None:
        raise TrainError("the engine holds no model", why="it was not started, or was closed")
    return trainer
