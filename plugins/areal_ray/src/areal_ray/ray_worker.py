"""One worker as the controller sees it: calls through its relay, its state, and a copy of its log.

Knows: the calls of a relay, and that a lost relay, host or link is a lost worker.
Does not know: where the worker runs, or the other workers of its gang (`ray_scheduler`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import ray
from ray.exceptions import RayError

from areal_core.contract.errors import ArealError, ResourceError, StorageError, WorkerDied
from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_core.worker.supervise import failure
from areal_local.scheduler.birth import log_name
from areal_local.scheduler.process import log_tail
from areal_local.scheduler.rpc import RpcClient
from areal_ray.news import News, packed, unpacked
from areal_ray.versions import versions
from areal_worker.codec import Frame, decode, encode

_SIGNS_PER_DEADLINE = 4
_STOOD_STILL = 2
"""A wait so many times as long as was asked for: this process stood still, or its link did."""
_KILL_S = 5.0
_UNBEGUN_S = 1.0
_OTHER_VERSION = ("No module named", "cannot import name", "has no attribute 'begin'", "positional argument")
"""In what Ray tells of a relay that could not be made there, or is none that this process knows."""


class RayWire:
    """Takes messages to a relay. Satisfies `areal_local.scheduler.rpc.Wire`. Any: Ray's handle of an actor."""

    def __init__(self, relay: Any, receive: Callable[[list[Frame]], None]) -> None:
        self._relay, self._number, self.receive = relay, 0, receive

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue one message and never block."""
        self._relay.send.remote(self._number, packed(frames))
        self._number += 1
        return True

    def close(self) -> None:
        """Nothing is held. Idempotent."""


class RayWorker:
    """Starting at first; running once `begin` returned; silent or ended when it is not what it was."""

    def __init__(self, job: Job, rank: int, relay: Any, host: str, node: str, folder: Path) -> None:
        """Speak to a relay.

        Args:
            host: the address the worker is reached at.
            relay: Ray's handle of a `Relay`. Any: it has what methods the class has.
            node: Ray's id of its machine.
            folder: where its log is copied to.
        """
        self.id, self.host, self.node = f"{job.role}/{rank}", host, node
        self.devices: tuple[str, ...] = ()
        self.clock_ahead_s = 0.0
        """How far the clock of its host is ahead of the controller's, at least."""
        self._job, self._rank, self._relay = job, rank, relay
        self._log_path = folder / log_name(job, rank)
        self._status = WorkerStatus(
            id=self.id, role=job.role, rank=rank, state=WorkerState.STARTING, log_path=str(self._log_path)
        )
        self._receives: Callable[[list[Frame]], None] = _nobody
        self.client = RpcClient(self.id, host, self._open)
        self._listener: asyncio.Task[None] | None = None
        self._begun = False
        self._stays = relay.stay.remote()

    @property
    def running(self) -> bool:
        """Return whether it took calls when it was last heard of."""
        return self._status.state is WorkerState.RUNNING

    def status(self) -> WorkerStatus:
        """Return what was last heard of it; raise what keeps it from being heard, which is no state of a worker."""
        if self._listener is not None and self._listener.done():
            self._listener.result()
        return self._status

    async def begin(self, devices: Sequence[str], variables: dict[str, str], *, heartbeat_timeout_s: float) -> None:
        """Have the relay start the worker, and listen to it from then on; no deadline of its own.

        Args:
            devices: the ids of those it shares with another role; empty takes what Ray gave it.
            variables: those of the controller that it gets.

        Raises:
            ResourceError, WorkerDied: it cannot be started there.
            StorageError: its log cannot be written here.
        """
        try:
            self._log_path.open("ab").close()
        except OSError as exc:
            raise StorageError(f"the log {self._log_path} cannot be written", why=str(exc)) from exc
        (line,) = encode((self._job, self._rank, heartbeat_timeout_s, tuple(devices), variables))
        asked = time.time()
        try:
            begun = await self._relay.begin.remote(self.id, self.host, versions(), bytes(line))
            answer = decode(unpacked(begun, num_plain=1))
        except RayError as error:
            raise _no_relay(self.id, self.host, error) from error
        self._begun = True
        if isinstance(answer, ArealError):
            with contextlib.suppress(RayError, TimeoutError):  # whoever cancelled the role may have ended the relay
                await self._keep_log(0.0)
            raise answer
        pid, self.devices, there = answer
        self.clock_ahead_s = there - min(max(there, asked), time.time())
        self._status = attrs.evolve(self._status, state=WorkerState.RUNNING, pid=pid)
        self._listener = asyncio.create_task(self._listen(heartbeat_timeout_s), name=f"areal-news-{self.id}")

    def write_stacks(self) -> None:
        """Have the process write the stacks of its threads into its log."""
        self._relay.write_stacks.remote()

    async def end(self, patience_s: float) -> None:
        """End the process, everything that belongs to it, and its relay. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait((listener,))
        self.client.close()
        try:
            with contextlib.suppress(RayError, TimeoutError):
                # One that has not begun may not even be there; its worker sees it go.
                await self._keep_log(patience_s if self._begun else 0.0)
        finally:
            ray.kill(self._relay)
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._stays, _KILL_S)

    async def _keep_log(self, patience_s: float) -> None:
        """End the worker and keep the last lines of its log."""
        async with asyncio.timeout(patience_s + (_KILL_S if self._begun else _UNBEGUN_S)):
            self._write_log(await self._relay.end.remote(patience_s))

    def _open(self, receive: Callable[[list[Frame]], None]) -> RayWire:
        self._receives = receive
        return RayWire(self._relay, receive)

    async def _listen(self, heartbeat_timeout_s: float) -> None:
        """Take news until the worker ended; without any for too long it is silent, and may come back.

        The relay counts silence while this process stands still, too: such silence is told when it has lasted a whole
        deadline before the eyes of this process.
        """
        within_s = heartbeat_timeout_s / _SIGNS_PER_DEADLINE
        unseen_s = 0.0
        while self._status.state is not WorkerState.ENDED:
            asking = asyncio.ensure_future(self._relay.news.remote(within_s))
            asked = time.monotonic()
            try:
                done, _ = await asyncio.wait({asking}, timeout=heartbeat_timeout_s)
                if not done and time.monotonic() - asked > heartbeat_timeout_s + within_s:
                    done, _ = await asyncio.wait({asking}, timeout=heartbeat_timeout_s)  # not the relay was late
                if not done:
                    self._become(attrs.evolve(self._status, state=WorkerState.SILENT, log_tail=self._tail()))
                news = await asking
                waited_s = time.monotonic() - asked
                unseen_s = heartbeat_timeout_s if waited_s > _STOOD_STILL * within_s else max(unseen_s - waited_s, 0.0)
                self._hear(news, believed=unseen_s == 0.0)
            except RayError as error:
                last = f"its host {self.host} or the relay on it was lost: {_brief(error)}"
                tail = (*self._tail(), last)
                self._become(attrs.evolve(self._status, state=WorkerState.ENDED, log_tail=tail))
            finally:
                asking.cancel()

    def _hear(self, news: News, *, believed: bool) -> None:
        """Take news in; silence that is not believed yet changes nothing."""
        self._write_log(news.log)
        for message in news.messages:
            self._receives(unpacked(message, num_plain=2))
        status = attrs.evolve(decode([news.status]), log_path=str(self._log_path))
        if status.state is WorkerState.SILENT and not believed:
            status = attrs.evolve(status, state=self._status.state)
        self._become(status)

    def _become(self, status: WorkerStatus) -> None:
        before, self._status = self._status.state, status
        error = failure(status)
        if error is not None and status.state is not before:
            self.client.fail(error, final=status.state is WorkerState.ENDED)
        elif error is None and before is WorkerState.SILENT:
            self.client.recover()

    def _write_log(self, part: bytes) -> None:
        if part:
            with contextlib.suppress(OSError), self._log_path.open("ab") as file:
                file.write(part)

    def _tail(self) -> tuple[str, ...]:
        return log_tail(self._log_path)


def _nobody(frames: list[Frame]) -> None:
    pass


def _no_relay(worker: str, host: str, error: RayError) -> ArealError:
    what, why = f"worker {worker} cannot be started on host {host}", _brief(error)
    if any(sign in str(error) for sign in _OTHER_VERSION):
        fix = "install areal-ray, in the version of the controller, for the Python that Ray runs there"
        return ResourceError(what, why=why, fix=fix)
    return WorkerDied(what, why=why, fix="look at that machine: ray list nodes, ray logs")


def _brief(error: RayError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = [line for line in lines if any(sign in line for sign in _OTHER_VERSION)]
    return [*missing[-1:], *lines, type(error).__name__][0]
