"""Workers in this process behave as remote ones do: values are copied, errors are typed, faults are remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from areal_conformance.benches.pair_workers import InProcessWorker
from areal_core.contract.errors import RemoteError, WeightSyncError, WorkerDied, WorkerTimeout


class _Host:
    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "hang":
            await asyncio.Event().wait()
        if method == "break":
            raise KeyError("inside")
        if method == "refuse":
            raise WeightSyncError("no")
        args[0].append(1)
        return args[0]

    async def close(self) -> None:
        """Do nothing."""


def test_a_call_copies_what_it_carries() -> None:
    """The host cannot change the caller's argument."""

    async def story() -> None:
        worker = InProcessWorker("rollout/0", _Host(), asyncio.Lock())
        mine = [0]
        assert await worker.call("add", mine, timeout_s=5.0) == [0, 1]
        assert mine == [0]

    asyncio.run(story())


def test_errors_arrive_as_from_another_process() -> None:
    """An areal error is itself, any other a RemoteError with the worker's name, a late answer a WorkerTimeout."""

    async def story() -> None:
        worker = InProcessWorker("rollout/0", _Host(), asyncio.Lock())
        with pytest.raises(WeightSyncError):
            await worker.call("refuse", timeout_s=5.0)
        with pytest.raises(RemoteError, match="rollout/0"):
            await worker.call("break", timeout_s=5.0)
        with pytest.raises(WorkerTimeout, match="rollout/0"):
            await worker.call("hang", timeout_s=0.01)

    asyncio.run(story())


def test_the_dead_stay_dead() -> None:
    """After a fault of death every later call fails alike, and the fault counts as fired."""

    async def story() -> None:
        worker = InProcessWorker("rollout/0", _Host(), asyncio.Lock())
        worker.faults["receive_weights"] = WorkerDied("gone")
        for method in ("receive_weights", "status", "generate"):
            with pytest.raises(WorkerDied):
                await worker.call(method, [0], timeout_s=5.0)
        assert worker.fired == ["receive_weights", "status", "generate"]

    asyncio.run(story())
