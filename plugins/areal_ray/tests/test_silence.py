"""Silence of a worker, told by a controller that stood still meanwhile. The clock is stepped; there is no cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("ray")

from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_ray import ray_worker
from areal_ray.news import News, Packed, packed
from areal_ray.ray_worker import RayWorker
from areal_worker.codec import encode

JOB = Job(role="probe", engine_role="train", backend="probe", num_workers=1)
HEARTBEAT_S = 1.0
SIGN_S = HEARTBEAT_S / 4


@attrs.frozen
class Method:
    """A method of an actor. Any: what the actor's takes and gives."""

    remote: Callable[..., Any]


class Relay:
    """Tells of a worker that is silent all the time; each word takes as long as the clock is stepped by."""

    def __init__(self, waits: list[float], clock: Any) -> None:
        self.begin, self.news, self.stay = Method(self._begin), Method(self._news), Method(asyncio.Event)
        self.told: list[WorkerState] = []
        """What the controller told before each word."""
        self.worker: RayWorker | None = None
        self.over = asyncio.Event()
        self._waits, self._clock = waits, clock

    async def _begin(self, *_given: object) -> Packed:
        return packed(encode((7, (), time.time())))

    async def _news(self, _within_s: float) -> News:
        assert self.worker is not None
        self.told.append(self.worker.status().state)
        state = WorkerState.SILENT if self._waits else WorkerState.ENDED
        if not self._waits:
            self.over.set()
        self._clock.now += self._waits.pop(0) if self._waits else SIGN_S
        status = WorkerStatus(id="probe/0", role="probe", rank=0, state=state, pid=7)
        (line,) = encode(status)
        return News(messages=(), status=bytes(line), log=b"")


class Clock:
    """Stands in for the module `time`."""

    now = 100.0

    def monotonic(self) -> float:
        """Return what it was stepped to."""
        return self.now

    def time(self) -> float:
        """Return the same."""
        return self.now


async def _heard(relay: Relay, folder: Path) -> list[WorkerState]:
    worker = relay.worker = RayWorker(JOB, 0, relay, "127.0.0.1", "node", folder)
    await worker.begin((), {}, heartbeat_timeout_s=HEARTBEAT_S)
    await relay.over.wait()
    return relay.told


@pytest.mark.parametrize(
    ("first_s", "believed_after"), [(SIGN_S, 1), (3 * HEARTBEAT_S, 5)], ids=["awake", "stood still"]
)
def test_silence_is_told_when_it_was_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first_s: float, believed_after: int
) -> None:
    """At once by a controller that was awake; by one that stood still, after a deadline of its own."""
    clock = Clock()
    monkeypatch.setattr(ray_worker, "time", clock)
    relay = Relay([first_s, *[SIGN_S] * 7], clock)

    told = asyncio.run(_heard(relay, tmp_path))

    assert told == [WorkerState.RUNNING] * believed_after + [WorkerState.SILENT] * (9 - believed_after)
