"""Trainers one of whose ranks leaves the others waiting, or keeps an error to itself.

Knows: where the ranks of the second trainer meet.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, ResourceError, TrainError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, Sum, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_proof.mutants import mutant
from areal_proof.mutants.train_ranks import Sharing, Through
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine
from areal_proof.second.train.engine import _identity as facts_of
from areal_proof.second.train.folder import read_architecture
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.sending import send

_NOTHING = TrainReport(
    loss=0.0, grad_norm=0.0, lr=0.0, stepped=True, num_microbatches=0, num_tokens=0, seconds=0.0, metrics={}
)


@mutant("train/second", killers=("train.ranks.empty_shard",), ranks=2)
class EmptyShardReturnsEarly(SecondTrainEngine):
    """A rank without data returns at once, and the others wait for it."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Return at once."""
        return super().train_step(batch, objective) if batch.num_sequences else _NOTHING


@mutant("train/second", killers=("train.ranks.forward",), ranks=2)
class NothingToScoreReturnsEarly(SecondTrainEngine):
    """A rank with nothing to score returns at once, and the others wait for it."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Return at once."""
        if batch.num_sequences:
            return super().forward(batch, outputs)
        return batch.with_tokens(**{str(name): torch.zeros(0) for name in outputs})


class _Meeting(Through):
    """Meets the other ranks after every micro-batch."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        result = super().loss(columns, batch, normalizer)
        dist.all_reduce(torch.zeros(1), group=_Meeting.group)
        return result

    group: dist.ProcessGroup | None = None


@mutant("train/second", killers=("train.ranks.microbatches",), ranks=2)
class MeetsEveryMicrobatch(Sharing):
    """Reduces after every micro-batch, and does not agree on how many there are."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Meet too often."""
        if not self.several:
            return super().train_step(batch, objective)
        if _Meeting.group is None:
            _Meeting.group = dist.new_group(timeout=timedelta(seconds=3))  # so that its end is not waited for long
        return super().train_step(batch, _Meeting(objective, self._running().ranks))

    def close(self) -> None:
        """Forget the group."""
        _Meeting.group = None
        super().close()


@mutant(
    "train/second",
    killers=("train.ranks.error.too_long", "train.ranks.error.missing_column"),
    incident="verl#7155",
    row="dead-peer",
    ranks=2,
)
class ErrorStaysHome(SecondTrainEngine):
    """Checks its shard before it meets the others, and raises alone: they wait in the first collective."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Check alone."""
        self._running().columns.check(batch, objective.outputs, objective.columns)
        return super().train_step(batch, objective)


@mutant("train/second", killers=("train.ranks.error.unknown_token",), ranks=2)
class UnknownTokenStaysHome(SecondTrainEngine):
    """Looks for ids outside the vocabulary before it meets the others, and raises alone."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Look alone."""
        ids = batch.tokens["input_ids"]
        if len(ids) and int(ids.max()) >= 10**6:
            raise BatchError("an id is outside the vocabulary", why="it must be below the number of ids")
        return super().train_step(batch, objective)


@mutant("train/second", killers=("train.ranks.error.forward",), ranks=2)
class ScoringErrorStaysHome(SecondTrainEngine):
    """Checks what it is to score before it meets the others, and raises alone."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Check alone."""
        self._running().columns.check(batch, outputs, frozenset())
        return super().forward(batch, outputs)


@mutant("train/second", killers=("train.ranks.error.too_long", "train.ranks.error.missing_column"), ranks=2)
class OthersNeverHear(Sharing):
    """The rank with the bad shard raises; the others skip the step and report it as made."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Swallow what another rank raised."""
        try:
            return super().train_step(batch, objective)
        except BatchError as error:
            if error.what.startswith("on rank"):
                return _NOTHING
            raise


@mutant("train/second", killers=("train.ranks.error.model",), ranks=2)
class ModelErrorStaysHome(SecondTrainEngine):
    """Looks at the model folder before it meets the others, and raises alone."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Look alone."""
        read_architecture(spec.model_path, spec.head)
        return super().start(spec, rank)


@mutant("train/second", killers=("train.ranks.frozen",), ranks=2)
class FrozenOnRankZero(Sharing):
    """Refuses to train a frozen role on rank 0 only."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Report a step that was not made."""
        here = self._running()
        return _NOTHING if here.adam is None and here.ranks.rank else super().train_step(batch, objective)


@mutant("train/second", killers=("train.ranks.late",), ranks=2)
class GivesUpAtOnce(Sharing):
    """Waits a tenth of a second for the others, whatever the timeout."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Wait briefly."""
        if self.several:
            dist.monitored_barrier(timeout=timedelta(seconds=0.1))
        return super().train_step(batch, objective)


@mutant("train/second", killers=("train.ranks.send.failing_sink",), ranks=2)
class SinkErrorStaysHome(SecondTrainEngine):
    """Rank 0 raises what its sink raised before it tells the others, who wait."""

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Begin alone."""
        if sink is None:
            return super().send_weights(sink, version)
        receipt = send(sink, Ranks(), version, self._exported(self._running()), {})
        self._running().ranks.agree(lambda: None)
        return receipt


@mutant("train/second", killers=("train.ranks.save_nowhere",), ranks=2)
class SaveErrorStaysHome(SecondTrainEngine):
    """Rank 0 makes the folder before it meets the others, and raises alone."""

    def save_weights(self, path: Path) -> None:
        """Make the folder alone."""
        if self._running().ranks.rank == 0:
            checkpoint.stored(path, lambda: path.with_name(path.name + ".building").mkdir(parents=True, exist_ok=True))
        super().save_weights(path)


@mutant("train/second", killers=("train.ranks.state.missing",), ranks=2)
class LoadErrorStaysHome(SecondTrainEngine):
    """Looks for the state before it meets the others, and raises alone."""

    def load_state(self, path: Path) -> None:
        """Load alone first."""
        here = self._running()
        copies = {name: tensor.clone() for name, tensor in here.table.items()}
        checkpoint.load(path, Ranks(), copies, facts_of(here))
        super().load_state(path)


@mutant("train/second", killers=("train.ranks.close_frees",), ranks=2)
class LeavesAPort(Sharing):
    """Keeps a port open after close."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Listen."""
        _KEPT.append(socket.create_server(("127.0.0.1", 0)))
        return super().start(spec, rank)


_KEPT: list[socket.socket] = []


@mutant("train/second", killers=("train.ranks.loopback",), ranks=2)
class ListensToEverybody(Sharing):
    """Meets the other ranks on every interface of the machine."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Listen."""
        self._listener = socket.create_server(("0.0.0.0", 0))
        return super().start(spec, rank)

    def close(self) -> None:
        """Stop listening."""
        if hasattr(self, "_listener"):
            self._listener.close()
        super().close()


@mutant("train/second", killers=("train.ranks.fault.stuck",), incident="NeMo-RL#3488", row="dead-peer", ranks=2)
class NoTimeout(SecondTrainEngine):
    """Waits for other ranks for ten minutes, whatever the timeout."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Wait longer."""
        return super().start(spec, attrs.evolve(rank, timeout_s=600.0))


@mutant("train/second", killers=("train.ranks.fault.absent",), ranks=2)
class RawErrorAtStart(SecondTrainEngine):
    """Lets through what the collective library says of a rank that never came."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Raise the cause."""
        try:
            return super().start(spec, rank)
        except ResourceError as error:
            raise RuntimeError(error.why) from error


@mutant(
    "train/second",
    killers=(
        "train.ranks.fault.killed_step",
        "train.ranks.fault.killed_send",
    ),
    incident="TRL#6913",
    row="dead-peer",
    ranks=2,
)
class GoesOnWithoutTheDead(SecondTrainEngine):
    """Takes the death of another rank for nothing worth telling."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Report a step nobody made."""
        try:
            return super().train_step(batch, objective)
        except TrainError:
            return _NOTHING

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Return as if all was sent."""
        try:
            return super().send_weights(sink, version)
        except TrainError:
            return None


@mutant("train/second", killers=("train.ranks.fault.killed_forward",), row="dead-peer", ranks=2)
class WaitsForTheDead(SecondTrainEngine):
    """Tries again and again to reach a rank that has died."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Wait for ever."""
        try:
            return super().forward(batch, outputs)
        except TrainError:
            threading.Event().wait()
            raise
