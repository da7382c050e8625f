"""All ranks of one training role as one thing: scatter a batch, call every rank, gather.

Knows: which rank takes which shard.
Does not know: what is trained, or where the ranks run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import EngineInfo, ObjectiveSpec, Output, RankContext, TrainReport, TrainSpec
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.loop.aside import aside
from areal_core.plugins.extensions import Balance, need


class TrainGroup:
    """A role's ranks, called together. Every method is one collective call."""

    def __init__(self, role: str, workers: Sequence[Worker], *, timeout_s: float) -> None:
        self.role = role
        self.workers = tuple(workers)
        self.busy_s = 0.0
        """Seconds spent in steps and forward passes."""
        self._timeout_s = timeout_s
        self._infos: tuple[EngineInfo, ...] = ()

    @property
    def info(self) -> EngineInfo:
        """Return what rank 0 reported at start."""
        return self._infos[0]

    async def start(self, spec: TrainSpec, ranks: Sequence[RankContext], *, timeout_s: float) -> None:
        """Build the model on every rank."""
        calls = [
            worker.call("start", spec, rank, timeout_s=timeout_s)
            for worker, rank in zip(self.workers, ranks, strict=True)
        ]
        self._infos = tuple(await gather_or_cancel(calls))

    async def train_step(self, batch: Batch, objective: ObjectiveSpec) -> TrainReport:
        """Make one optimizer step on the whole batch."""
        shards = await self._scatter(batch)
        reports = await self._call_ranks("train_step", lambda number: (shards[number][1], objective))
        self.busy_s += reports[0].seconds
        report: TrainReport = reports[0]
        return report

    async def forward(self, batch: Batch, output: Output) -> Tensor:
        """Return one column for the whole batch, float32 [T], in the batch's token order."""
        (column,) = await self.columns(batch, output.value)
        return column

    async def columns(self, batch: Batch, *names: str) -> list[Tensor]:
        """Return outputs for the whole batch, each [T] or [T, K]; `candidates` may be named beside their log-probs."""
        shards = await self._scatter(batch)
        began = time.monotonic()
        answers = await self._call_ranks("forward", lambda number: (shards[number][1], list(names)))
        self.busy_s += time.monotonic() - began
        return await aside(batch.num_tokens, partial(_gathered, batch, shards, answers, names))

    async def save_weights(self, path: Path) -> None:
        """Write a Hugging Face folder."""
        await self._call_ranks("save_weights", lambda _: (str(path),))

    async def save_state(self, path: Path) -> None:
        """Write an exact resume point."""
        await self._call_ranks("save_state", lambda _: (str(path),))

    async def begin_state(self, path: Path) -> None:
        """Begin a resume point that ranks write during the next steps."""
        await self._call_ranks("begin_state", lambda _: (str(path),))

    async def state_written(self) -> bool:
        """Tell whether every rank has written its part of the resume point that was begun."""
        return all(await self._call_ranks("state_written", lambda _: ()))

    async def finish_state(self) -> None:
        """Wait for the resume point that was begun; it is complete then."""
        await self._call_ranks("finish_state", lambda _: ())

    async def load_state(self, path: Path) -> None:
        """Return to a resume point."""
        await self._call_ranks("load_state", lambda _: (str(path),))

    async def set_version(self, version: int) -> None:
        """Tell every rank which policy version its weights are."""
        await self._call_ranks("set_version", lambda _: (version,))

    async def offload(self) -> None:
        """Give the memory of the role's devices back."""
        await self._call_ranks("offload", lambda _: ())

    async def onload(self) -> None:
        """Take it again, before the next use."""
        await self._call_ranks("onload", lambda _: ())

    async def _call_ranks(self, method: str, arguments: Any) -> list[Any]:
        # Any: arguments and answers are those of the contract method named.
        calls = [
            worker.call(method, *arguments(number), timeout_s=self._timeout_s)
            for number, worker in enumerate(self.workers)
        ]
        return await gather_or_cancel(calls)

    async def _scatter(self, batch: Batch) -> list[_Shard]:
        """Return, per rank, the rows of its shard and the shard itself."""
        shards = await aside(batch.num_tokens, partial(_shards, batch, self.info.data_size))
        return [shards[info.data_rank] for info in self._infos]


_Shard = tuple[Sequence[int], Batch]
"""Rows of a batch, and the batch of them."""


@cache
def _balance() -> Balance:
    found: Balance = need("balance", "training")
    return found


def shares(lengths: Sequence[int], num_parts: int, groups: Sequence[str] | None = None) -> list[list[int]]:
    """Return row numbers for each part, of like sums of tokens, ascending: the extension `balance`."""
    return _balance()(lengths, num_parts, groups)


def _shards(batch: Batch, data_size: int) -> list[_Shard]:
    if data_size == 1:
        return [(range(batch.num_sequences), batch)]
    return [(rows, batch.select(rows)) for rows in shares(batch.lengths.tolist(), data_size)]


def _gathered(batch: Batch, shards: Sequence[_Shard], answers: Sequence[Batch], names: Sequence[str]) -> list[Tensor]:
    """Return columns of all ranks' answers in the batch's token order."""
    tables = [answer.tokens for answer in answers]
    found = [tables[0][name].new_zeros(batch.num_tokens, *tables[0][name].shape[1:]) for name in names]
    starts = batch.cu_seqlens.tolist()
    for (rows, _), table in zip(shards, tables, strict=True):
        if rows:
            places = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
            for name, column in zip(names, found, strict=True):
                column[places] = table[name]
    return found
