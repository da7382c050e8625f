"""What every engine on these shared parts answers alike: a base class with all calls of the contract but `start`.

    class MyEngine(TrainerEngine):
        def start(self, spec, rank): ...            # builds the model, sets `trainer`, and `group` if it joined one
        def around_pass(self): ...                  # what steps and forward passes run in, if it must be more

Knows: which call needs a started trainer, and which needs its weights on the device; how a process group is left.
Does not know: how a model is built or cut, or what an engine does around a step of its own.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective, Output, TrainReport
from areal_core.contract.weights import Receipt, WeightSink
from areal_torch.group import ProcessRanks
from areal_torch.process_group import leave
from areal_torch.traces import StepTraces
from areal_torch.trainer import Trainer, running, started


class TrainerEngine:
    """A TrainEngine without `start`, with `SupportsOffload` and `SupportsBackgroundState`."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._version = 0
        self._traces = StepTraces.asked(os.environ)
        self.trainer: Trainer | None = None
        """Set by `start`, None before it and after `close`."""
        self.group: ProcessRanks | None = None
        """Set by a `start` that joined a process group; `close` leaves it."""

    @property
    def version(self) -> int:
        """The policy version of the weights held. It is set when a step is over."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self._traces.end()

    def around_pass(self) -> AbstractContextManager[object]:
        """Return what every step and forward pass runs in, also one that fails; override it to do more than nothing."""
        return nullcontext()

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step."""
        trainer = running(self.trainer)
        with self._traced(trainer, "train_step"), self.around_pass():
            return trainer.train_step(batch, objective)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Add columns, without gradient."""
        trainer = running(self.trainer)
        with self._traced(trainer, "forward"), self.around_pass():
            return trainer.forward(batch, outputs)

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every parameter, gathered one bucket at a time."""
        trainer = running(self.trainer)
        with self._traces.after(version, trainer.group.rank, "weights"):
            return trainer.send_weights(sink, version)

    def save_weights(self, path: Path) -> None:
        """Write a model folder, gathered one file at a time."""
        running(self.trainer).save_weights(path)

    def save_state(self, path: Path) -> None:
        """Write an exact state, each rank the boxes it answers for."""
        running(self.trainer).save_state(path, self.version)

    def begin_state(self, path: Path) -> None:
        """Copy the state out of the way, and have it written meanwhile."""
        running(self.trainer).begin_state(path, self.version)

    def state_written(self) -> bool:
        """Tell whether this rank has nothing left to write."""
        return started(self.trainer).state_written()

    def finish_state(self) -> None:
        """Wait for a state that was begun, and give it its name."""
        started(self.trainer).finish_state()

    def load_state(self, path: Path) -> None:
        """Return to an exact state."""
        self.version = running(self.trainer).load_state(path)

    def offload(self) -> None:
        """Move this rank's weights and moments off the device."""
        started(self.trainer).offload()

    def onload(self) -> None:
        """Bring them back."""
        started(self.trainer).onload()

    def close(self) -> None:
        """Let go of model and optimizer; leave the process group, together if the others still answer. Idempotent."""
        self._traces.end()
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            trainer.close()
        group, self.group = self.group, None
        if group is not None:
            leave(group)

    def _traced(self, trainer: Trainer, what: str) -> AbstractContextManager[object]:
        return self._traces.step(self.version + 1, trainer.group.rank, what)
