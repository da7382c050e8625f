"""The numbers of a step are those of its batch: one rank or two, one micro-batch or many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_algorithms.balance import balance
from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_core.algorithms.config import Proximal
from areal_core.algorithms.sums import means
from areal_core.contract.batch import Batch
from areal_core.contract.train import Head, Output, TrainReport
from areal_torch.step import Limits, train_step
from areal_torch.testing.batches import VOCAB_SIZE, make_batch

from .cases import Bigram, with_columns

CPU = torch.device("cpu")


class Meeting:
    """Where ranks in threads leave what they gather."""

    def __init__(self, size: int) -> None:
        self.barrier, self.table = Barrier(size), list[Any]([None] * size)


@frozen
class ThreadRank:
    """One rank of `areal_torch.group.RankGroup`, each with a shard of its own."""

    rank: int
    size: int
    data_ranks: Sequence[int]
    meeting: Meeting

    def gather(self, value: Any) -> list[Any]:
        self.meeting.barrier.wait(60)
        self.meeting.table[self.rank] = value
        self.meeting.barrier.wait(60)
        return list(self.meeting.table)


class Model:
    """A bigram table with the calls of `areal_torch.step.Model`."""

    def __init__(self) -> None:
        self.bigram = Bigram(3)

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        found = self.bigram.columns(batch)
        return {name: found[name] for name in outputs}

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()


class NoOptimizer:
    """Takes no step."""

    lr = 0.0

    def squared_norm(self) -> float:
        return 0.0

    def step(self, norm: float) -> bool:
        return math.isfinite(norm)

    def drop_gradients(self) -> None:
        """There is nothing to forget."""


def _step(batch: Batch, config: PPOConfig, ranks: int, max_tokens: int) -> TrainReport:
    meeting = Meeting(ranks)
    limits = Limits(head=Head.CAUSAL_LM, max_tokens=max_tokens, context_length=10_000, vocab_size=VOCAB_SIZE)
    shards = batch.split(balance(batch.lengths.tolist(), ranks))

    def one(rank: int) -> TrainReport:
        group = ThreadRank(rank, ranks, tuple(range(ranks)), meeting)
        return train_step(Model(), NoOptimizer(), group, CPU, limits, shards[rank], PPOObjective(config))  # type: ignore[arg-type]

    with ThreadPoolExecutor(ranks) as threads:
        reports = list(threads.map(one, range(ranks)))
    assert all(report.metrics == reports[0].metrics for report in reports)
    return reports[0]


@pytest.mark.parametrize("proximal", [Proximal.BEHAVIOUR, Proximal.RECOMPUTE])
@settings(max_examples=10, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=2, max_size=7), seed=st.integers(0, 99)
)
def test_no_number_depends_on_ranks_or_microbatches(
    proximal: Proximal, shapes: list[tuple[int, int]], seed: int
) -> None:
    """Means and extremes are the whole batch's, on two ranks of many micro-batches."""
    batch = with_columns(make_batch(shapes), seed)
    config = PPOConfig(proximal=proximal)
    expected = means(_step(batch, config, ranks=1, max_tokens=100_000).metrics)
    smallest = int(batch.lengths.max())

    for ranks, max_tokens in ((1, smallest), (2, 100_000), (2, smallest)):
        report = _step(batch, config, ranks=ranks, max_tokens=max_tokens)

        assert means(report.metrics) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    ratios = {"policy_ratio_min", "policy_ratio_max", "policy_ratio_square", "entropy"}
    assert ratios <= expected.keys()
