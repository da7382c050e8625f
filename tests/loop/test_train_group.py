"""Scatter and gather: whatever the number of ranks, every token comes back to its place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from attrs import Factory, define
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.batch import Batch
from areal_core.contract.errors import WorkerDied
from areal_core.contract.train import EngineInfo, ObjectiveSpec, Output, RankContext, TrainReport, TrainSpec
from areal_core.loop.train_group import TrainGroup
from areal_torch.testing.batches import batches, make_batch


@define
class DoublingRank:
    """A rank whose log-prob of a token is twice its id. Ranks of one model replica report one data rank."""

    rank: int
    ranks_per_replica: int
    world_size: int
    host: str = "127.0.0.1"
    fails: bool = False
    seen: list[int] = Factory(list)
    cancelled: bool = False

    @property
    def id(self) -> str:
        """Return the worker's name."""
        return f"actor/{self.rank}"

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer as a train host would. Any: the contract's own types."""
        if method == "start":
            return EngineInfo(
                engine="fake",
                engine_version="0",
                device="cpu",
                num_parameters=0,
                context_length=64,
                data_rank=self.rank // self.ranks_per_replica,
                data_size=self.world_size // self.ranks_per_replica,
            )
        if self.fails:
            raise WorkerDied(f"worker {self.id} was killed")
        batch: Batch = args[0]
        if method == "train_step" and any(self.seen):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        self.seen += batch.tokens["input_ids"].tolist()
        if method == "forward":
            return Batch.of({"logprobs": batch.tokens["input_ids"].float() * 2}, {}, batch.lengths)
        return TrainReport(loss=0.0, grad_norm=0.0, lr=0.0, stepped=True, num_microbatches=1, num_tokens=0, seconds=1.0)


async def _start(ranks: Sequence[DoublingRank]) -> TrainGroup:
    group = TrainGroup("actor", ranks, timeout_s=1.0)
    contexts = [
        RankContext(rank=n, world_size=len(ranks), local_rank=0, device="cpu", init_method="")
        for n in range(len(ranks))
    ]
    await group.start(TrainSpec(role="actor", model_path=""), contexts, timeout_s=1.0)
    return group


def _ranks(replicas: int, per_replica: int) -> list[DoublingRank]:
    world = replicas * per_replica
    return [DoublingRank(rank=n, ranks_per_replica=per_replica, world_size=world, seen=[]) for n in range(world)]


@settings(deadline=None, max_examples=30)
@given(batch=batches(), replicas=st.integers(1, 5), per_replica=st.integers(1, 2))
def test_a_forward_pass_returns_each_token_to_its_place(batch: Batch, replicas: int, per_replica: int) -> None:
    """For any number of replicas, more than there are sequences included."""

    async def forward() -> torch.Tensor:
        group = await _start(_ranks(replicas, per_replica))
        return await group.forward(batch, Output.LOGPROBS)

    column = asyncio.run(forward())

    assert column.tolist() == (batch.tokens["input_ids"].float() * 2).tolist()


@settings(deadline=None, max_examples=30)
@given(batch=batches(), replicas=st.integers(1, 4))
def test_every_token_is_trained_on_by_exactly_one_replica(batch: Batch, replicas: int) -> None:
    """And ranks of one replica see the same shard."""

    async def step() -> list[DoublingRank]:
        ranks = _ranks(replicas, 2)
        group = await _start(ranks)
        await group.train_step(batch, ObjectiveSpec(name="ppo"))
        return ranks

    ranks = asyncio.run(step())

    seen = [token for rank in ranks[::2] for token in rank.seen]
    assert sorted(seen) == sorted(batch.tokens["input_ids"].tolist())
    assert [rank.seen for rank in ranks[::2]] == [rank.seen for rank in ranks[1::2]]


def test_a_dead_rank_ends_the_call_on_all_ranks() -> None:
    """The error is the dead rank's own; the others, stuck in a collective, are not waited for."""

    async def step() -> list[DoublingRank]:
        ranks = _ranks(2, 1)
        group = await _start(ranks)
        ranks[0].seen = [1]
        ranks[1].fails = True
        with pytest.raises(WorkerDied, match="actor/1"):
            await asyncio.wait_for(group.train_step(make_batch(), ObjectiveSpec(name="ppo")), 5)
        return ranks

    assert asyncio.run(step())[0].cancelled
