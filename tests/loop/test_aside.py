"""A long batch keeps nobody waiting, and gives the same bits as one that is computed in the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_algorithms.columns import make_columns
from areal_core.algorithms.config import AlgorithmConfig, Proximal
from areal_core.algorithms.plan import objective_spec
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import EngineInfo, RankContext, Sum, TrainReport, TrainSpec
from areal_core.loop import aside as module
from areal_core.loop.aside import LARGE, aside
from areal_core.loop.learner import Learner, Update
from areal_core.loop.train_group import TrainGroup
from areal_core.plugins.registry import default_registry
from areal_torch.testing.batches import make_batch

DEADLINE_S = 60.0
REPORT = TrainReport(loss=0.0, grad_norm=1.0, lr=0.1, stepped=True, num_microbatches=1, num_tokens=5, seconds=0.1)


def test_the_event_loop_goes_on_beside_many_tokens() -> None:
    """The work ends only when the loop has done something else."""
    done = threading.Event()

    async def test() -> bool:
        asyncio.get_running_loop().call_soon(done.set)
        return await aside(LARGE, lambda: done.wait(DEADLINE_S))

    assert asyncio.run(test())


def test_threads_that_all_wait_for_something_keep_no_batch_waiting() -> None:
    """Workflows may block in every thread of the loop's own; the step goes on, and lets them go in the end."""
    gate = threading.Event()

    async def test() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, gate.wait, DEADLINE_S)
        try:
            return await asyncio.wait_for(aside(LARGE, lambda: "done"), DEADLINE_S / 2)
        finally:
            gate.set()
            await waiting

    assert asyncio.run(test()) == "done"


def test_few_tokens_are_not_worth_a_thread() -> None:
    """The work is done where it is asked for."""
    assert asyncio.run(aside(LARGE - 1, threading.current_thread)) is threading.current_thread()


def test_what_work_raises_comes_out() -> None:
    """From the thread as it is."""
    with pytest.raises(BatchError, match="no such column"):
        asyncio.run(aside(LARGE, _fail))


def _fail() -> None:
    raise BatchError("no such column")


class Rank:
    """One of two data ranks, which keeps what it is given."""

    host = "127.0.0.1"

    def __init__(self, rank: int) -> None:
        self.id, self.rank, self.seen = f"actor/{rank}", rank, list[Batch]()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer as a train host would. Any: the contract's own types."""
        if method == "start":
            return EngineInfo(
                engine="",
                engine_version="",
                device="cpu",
                num_parameters=0,
                context_length=0,
                data_rank=self.rank,
                data_size=2,
            )
        if method == "set_version":
            return None
        self.seen.append(args[0])
        return args[0].with_tokens(logprobs=args[0].tokens["logprobs"] / 2) if method == "forward" else REPORT


async def _update(batch: Batch) -> tuple[Update, list[Mapping[str, Tensor]], set[str]]:
    """Make one step of two minibatches; return it, what ranks were given, and the threads that made columns."""
    algorithm = AlgorithmConfig(minibatches=2, proximal=Proximal.RECOMPUTE)
    make, threads = make_columns(algorithm, default_registry(), max_new_tokens=16), set[str]()

    def columns(batch: Batch, version: int, forward_logprobs: Tensor | None = None) -> tuple[Batch, dict[str, Sum]]:
        threads.add(threading.current_thread().name)
        return make(batch, version, forward_logprobs)

    ranks = [Rank(0), Rank(1)]
    group = TrainGroup("actor", ranks, timeout_s=60.0)
    contexts = [RankContext(rank=n, world_size=2, local_rank=0, device="cpu", init_method="") for n in range(2)]
    await group.start(TrainSpec(role="actor", model_path=""), contexts, timeout_s=60.0)
    update = await Learner(algorithm, objective_spec(algorithm), group, columns).update(batch, 0)
    return update, [each.flat() for rank in ranks for each in rank.seen], threads


def test_a_step_is_the_same_beside_the_loop_and_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank is given the same bits, in the same order; of a large one a thread makes the columns."""
    batch = make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2)], group_size=2)
    within, given, there = asyncio.run(_update(batch))
    monkeypatch.setattr(module, "LARGE", 1)
    beside, also_given, elsewhere = asyncio.run(_update(batch))

    assert there == {threading.current_thread().name} and len(elsewhere) == 1 and there != elsewhere
    assert within.metrics == beside.metrics and len(given) == len(also_given) == 6
    for one, other in zip(given, also_given, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
