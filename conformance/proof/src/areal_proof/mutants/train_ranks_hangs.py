"""Trainers one of whose ranks leaves the others waiting, or keeps an error to itself.

Knows: where the ranks of the second trainer meet.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, ResourceError, TrainError
from areal_core.contract.train import Objective, Sum, TrainReport
from areal_core.contract.weights import WeightSink
from areal_proof.mutants.rows import Original, before, breaking, catches, on, row
from areal_proof.mutants.train_ranks import Sharing, Through
from areal_proof.second.architecture import read_architecture
from areal_proof.second.train import checkpoint
from areal_proof.second.train.engine import SecondTrainEngine, facts_of
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.sending import send

breaks = breaking("train/second", SecondTrainEngine, ranks=2)
breaks_sharing = breaking("train/second", Sharing, ranks=2)

_NOTHING = TrainReport(
    loss=0.0, grad_norm=0.0, lr=0.0, stepped=True, num_microbatches=0, num_tokens=0, seconds=0.0, metrics={}
)


class _Meeting(Through):
    """Meets the other ranks after every micro-batch."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        result = super().loss(columns, batch, normalizer)
        dist.all_reduce(torch.zeros(1), group=_Meeting.group)
        return result

    group: dist.ProcessGroup | None = None


@breaks_sharing("train_step", "train.ranks.microbatches", close=before(lambda: setattr(_Meeting, "group", None)))
def MeetsEveryMicrobatch(original: Original, self: Any, batch: Batch, objective: Objective) -> Any:
    """Reduces after every micro-batch, and does not agree on how many there are."""
    if not self.several:
        return original()
    if _Meeting.group is None:
        _Meeting.group = dist.new_group(timeout=timedelta(seconds=3))  # so that its end is not waited for long
    return original(batch, _Meeting(objective, self.running().ranks))


@breaks("send_weights", "train.ranks.send.failing_sink")
def SinkErrorStaysHome(original: Original, self: SecondTrainEngine, sink: WeightSink | None, version: int) -> Any:
    """Rank 0 raises what its sink raised before it tells the others, who wait."""
    if sink is None:
        return original()
    receipt = send(sink, Ranks(), version, self.exported(self.running()), {})
    self.running().ranks.agree(lambda: None)
    return receipt


@breaks("load_state", "train.ranks.state.missing")
def LoadErrorStaysHome(original: Original, self: SecondTrainEngine, path: Path) -> None:
    """Looks for the state before it meets the others, and raises alone."""
    here = self.running()
    copies = {name: tensor.clone() for name, tensor in here.table.items()}
    checkpoint.load(path, Ranks(), copies, facts_of(here))
    original()


_KEPT: list[socket.socket] = []


SHARING_ROWS = breaks_sharing.rows(
    row("OthersNeverHear", "The rank with the bad shard raises; the others skip the step and report it as made.",
        "train.ranks.error.too_long", "train.ranks.error.missing_column",
        train_step=catches(BatchError, lambda error: _NOTHING if error.what.startswith("on rank") else error)),
    row("ObjectiveHeardOnOneRank", "Where an objective raises, rank 0 says so; the others report the step as made.",
        "train.ranks.error.objective",
        train_step=catches(ZeroDivisionError, lambda self, error: _NOTHING if self.running().ranks.rank else error)),
    row("ObjectiveErrorIsNobodys", "Where an objective raises, rank 0 says so; the others raise an error of Python's.",
        "train.ranks.error.objective",
        train_step=catches(ZeroDivisionError, lambda self, error: RuntimeError("lost") if self.running().ranks.rank
            else error)),
    row("LongErrorsStayHome", "Tells others of an error what fits into four kilobytes, and nothing of a longer one.",
        "train.ranks.error.long_name",
        train_step=catches(BatchError, lambda error: _NOTHING if error.what.startswith("on rank")
            and len(str(error)) > 4096 else error)),
    row("GivesUpAtOnce", "Waits a tenth of a second for the others, whatever the timeout.", "train.ranks.late",
        train_step=before(lambda self: dist.monitored_barrier(timeout=timedelta(seconds=0.1)) if self.several
            else None)),
    row("LeavesAPort", "Keeps a port open after close.", "train.ranks.close_frees",
        start=before(lambda: _KEPT.append(socket.create_server(("127.0.0.1", 0))))),
    row("ListensToEverybody", "Meets the other ranks on every interface of the machine.", "train.ranks.loopback",
        start=before(lambda self: setattr(self, "_listener", socket.create_server(("0.0.0.0", 0)))),
        close=before(lambda self: self._listener.close() if hasattr(self, "_listener") else None)),
    row("FrozenOnRankZero", "Refuses to train a frozen role on rank 0 only.", "train.ranks.frozen",
        train_step=lambda original, self, batch, objective: _NOTHING if self.running().adam is None
            and self.running().ranks.rank else original(batch, objective)),
)  # fmt: skip


ROWS = breaks.rows(
    row("EmptyShardReturnsEarly", "A rank without data returns at once, and the others wait for it.",
        "train.ranks.empty_shard",
        train_step=lambda original, batch, objective: original(batch, objective) if batch.num_sequences else _NOTHING),
    row("NothingToScoreReturnsEarly", "A rank with nothing to score returns at once, and the others wait for it.",
        "train.ranks.forward",
        forward=lambda original, batch, outputs: original(batch, outputs) if batch.num_sequences
            else batch.with_tokens(**{str(name): torch.zeros(0) for name in outputs})),
    row("ErrorStaysHome",
        "Checks its shard before it meets the others, and raises alone: they wait in the first collective.",
        "train.ranks.error.too_long", "train.ranks.error.missing_column", incident="verl#7155", row="dead-peer",
        train_step=before(lambda self, batch, objective: self.running().columns.check(batch, objective.outputs,
            objective.columns))),
    row("ScoringErrorStaysHome", "Checks what it is to score before it meets the others, and raises alone.",
        "train.ranks.error.forward",
        forward=before(lambda self, batch, outputs: self.running().columns.check(batch, outputs, frozenset()))),
    row("ModelErrorStaysHome", "Looks at the model folder before it meets the others, and raises alone.",
        "train.ranks.error.model", start=before(lambda spec: read_architecture(spec.model_path, spec.head))),
    row("SaveErrorStaysHome", "Rank 0 makes the folder before it meets the others, and raises alone.",
        "train.ranks.save_nowhere",
        save_weights=before(lambda self,
            path: checkpoint.stored(path, lambda: path.with_name(path.name + ".building").mkdir(parents=True,
            exist_ok=True)) if self.running().ranks.rank == 0 else None)),
    row("NoTimeout", "Waits for other ranks for ten minutes, whatever the timeout.", "train.ranks.fault.stuck",
        incident="NeMo-RL#3488", row="dead-peer",
        start=lambda original, spec, rank: original(spec, attrs.evolve(rank, timeout_s=600.0))),
    row("RawErrorAtStart", "Lets through what the collective library says of a rank that never came.",
        "train.ranks.fault.absent", start=catches(ResourceError, lambda error: RuntimeError(error.why))),
    row("GoesOnWithoutTheDead", "Takes the death of another rank for nothing worth telling.",
        "train.ranks.fault.killed_step", "train.ranks.fault.killed_send", incident="TRL#6913", row="dead-peer",
        train_step=catches(TrainError, lambda: _NOTHING), send_weights=catches(TrainError, lambda: None)),
    row("WaitsForTheDead", "Tries again and again to reach a rank that has died.", "train.ranks.fault.killed_forward",
        row="dead-peer", forward=on(TrainError, lambda: threading.Event().wait())),
    row("UnknownTokenStaysHome", "Looks for ids outside the vocabulary before it meets the others, and raises alone.",
        "train.ranks.error.unknown_token",
        train_step=before(lambda batch: BatchError("an id is outside the vocabulary",
            why="it must be below the number of ids") if bool((batch.tokens["input_ids"] >= 10**6).any()) else None)),
)  # fmt: skip
