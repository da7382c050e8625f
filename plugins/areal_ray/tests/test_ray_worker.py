"""One worker as the controller sees it, where its relay is not what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayError

from areal_core.contract.errors import WorkerDied
from areal_core.contract.scheduler import Job
from areal_ray.news import Packed, packed
from areal_ray.ray_worker import RayWorker
from areal_worker.codec import encode


def test_a_worker_that_ended_while_it_started_is_told_though_its_relay_is_gone(tmp_path: Path) -> None:
    """Whoever cancels a role that starts ends the relay: the log cannot be asked for any more."""
    job = Job(role="early", engine_role="infer", backend="any", num_workers=1)

    async def begin(*_given: object) -> Packed:
        return packed(encode(WorkerDied("worker early/0 ended")))

    async def end(*_given: object) -> Sequence[bytes]:
        raise RayError("the actor died")

    async def run() -> None:
        relay = SimpleNamespace(
            begin=SimpleNamespace(remote=begin),
            end=SimpleNamespace(remote=end),
            stay=SimpleNamespace(remote=lambda: None),
        )
        worker = RayWorker(job, 0, relay, "127.0.0.1", "node", tmp_path)
        await worker.begin((), {}, heartbeat_timeout_s=8.0)

    with pytest.raises(WorkerDied, match="early/0 ended"):
        asyncio.run(run())
