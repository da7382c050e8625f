"""An actor of Ray beside each worker: it starts the worker's process on its host, and carries messages to and fro.

The process is that of the scheduler of one machine (`areal_local`), under whatever interpreter its engine needs, so
Ray itself is in no engine's environment. If this actor ends, however it ends, the process does too: its watchdog sees
its standard input close.

Knows: one process, its sockets in a private folder, its log.
Does not know: what the messages say, or who sent them: Ray admits nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import zmq

from areal_core.contract.device import CPU
from areal_core.contract.errors import ArealError, ResourceError
from areal_core.contract.scheduler import Job
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.birth import log_name, start_worker
from areal_local.scheduler.channel import Channel, KeyPair
from areal_local.scheduler.devices import DevicePool
from areal_local.scheduler.environment import interpreter, worker_environment
from areal_local.scheduler.local_worker import LocalWorker
from areal_local.scheduler.private_folder import PrivateFolder, private_roots
from areal_ray.news import InOrder, News, Packed, packed, unpacked
from areal_ray.versions import difference, versions
from areal_worker.codec import Frame, decode, encode

LOOK_S = 0.1
"""Between two looks at the worker: the delay with which its death is noticed."""
_MAX_LOG_BYTES = 262_144
_CARRIED = "AREAL_"
"""Variables of the controller whose names begin so reach workers on every host."""
_OWN = ("RAY_", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR")
"""Variables of Ray's own processes, its token among them, which a worker does not get."""

logger = logging.getLogger(__name__)


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the controller's variables that reach workers on every host."""
    return {name: value for name, value in environ.items() if name.startswith(_CARRIED)}


class Relay:
    """One worker. Its methods are called by the controller alone, many at once."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = KeyPair.generate()
        self._folder: PrivateFolder | None = None
        self._worker: LocalWorker[_Road] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._order = InOrder()
        self._arrived: list[Packed] = []
        self._log_read = 0
        self._news = asyncio.Event()

    async def begin(self, worker: str, host: str, wanted: Mapping[str, str], given: bytes) -> Packed:
        """Start the worker and wait until it answers. Takes and returns encoded values; an error is returned, too.

        Returns its process id, the ids of its devices, and what its host's clock says.

        Args:
            worker: its name.
            host: the address of this machine.
            wanted: the controller's `versions`; where others are, `given` may mean something else.
        """
        machine = f"{socket.gethostname()} ({host})"
        try:
            why, fix = difference(wanted, versions(), machine)
            if why:
                raise ResourceError(f"worker {worker} cannot serve this run", why=why, fix=fix)
            job, rank, heartbeat_s, devices, variables = decode([given])
            ids = tuple(devices or _given_by_ray(job))
            self._worker = self._start(job, rank, host, ids, variables)
            await self._worker.become_ready(self._context, self._keys, max_gap_s=2 * LOOK_S)
            self._watch = asyncio.create_task(self._look(heartbeat_s))
            return packed(encode((self._worker.process.pid, ids, time.time())))
        except ArealError as error:
            why = error.why if machine in error.why else f"{error.why} (on host {machine})".strip()
            return packed(encode(type(error)(error.what, why=why, fix=error.fix)))

    async def send(self, number: int, message: Packed) -> None:
        """Pass messages on in the order of their numbers, whatever order they come in."""
        for due in self._order.due(number, message):
            if self._worker is not None:
                self._worker.client.channel.send(unpacked(due, num_plain=1))

    async def news(self, within_s: float) -> News:
        """Return as soon as there is something to tell, or after so many seconds: a sign of life."""
        if not self._arrived:
            try:
                async with asyncio.timeout(within_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        self._news.clear()
        arrived, self._arrived = self._arrived, []
        if self._watch is not None and self._watch.done():
            self._watch.result()  # a watch that broke must not look like a worker that is well
        assert self._worker is not None
        (status,) = encode(self._worker.status())
        return News(messages=tuple(arrived), status=bytes(status), log=self._log())

    async def stay(self) -> None:
        """Return never: whoever waits for it hears when this actor is gone."""
        await asyncio.Event().wait()

    async def write_stacks(self) -> None:
        """Have the worker write the stacks of its threads into its log."""
        if self._worker is not None:
            self._worker.write_stacks()

    async def end(self, patience_s: float) -> bytes:
        """End the worker and everything that belongs to it; return what was added to its log. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        log = b""
        if self._worker is not None:
            await self._worker.end(patience_s)
            while part := self._log():
                log += part
        if self._folder is not None:
            self._folder.close()
        self._context.destroy(linger=0)
        return log

    def _start(
        self, job: Job, rank: int, at: str, ids: Sequence[str], variables: Mapping[str, str]
    ) -> LocalWorker[_Road]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        own = DevicePool({}, accelerators(default_registry())).confinement(job.device, tuple(ids))
        self._folder = PrivateFolder(private_roots(kept))
        return start_worker(
            job,
            rank,
            lambda _id, _host, wire: _Road(wire, self._on_message),
            host=at,
            listen=str(self._folder.path),
            controller_key=self._keys.public,
            command=(interpreter(job),),
            environ=worker_environment(job, own, {**kept, **variables}),
            log_path=self._folder.path / log_name(job, rank),
        )

    def _on_message(self, frames: list[Frame]) -> None:
        self._arrived.append(packed(frames))
        self._news.set()

    async def _look(self, heartbeat_s: float) -> None:
        assert self._worker is not None
        last = self._worker.status().state
        while True:
            self._worker.look(time.monotonic(), heartbeat_s)
            state = self._worker.status().state
            if state is not last or self._has_log():
                last = state
                self._news.set()
            await asyncio.sleep(LOOK_S)

    def _has_log(self) -> bool:
        assert self._worker is not None
        return self._worker.process.log_path.stat().st_size > self._log_read

    def _log(self) -> bytes:
        assert self._worker is not None
        with self._worker.process.log_path.open("rb") as file:
            file.seek(self._log_read)
            part = file.read(_MAX_LOG_BYTES)
        self._log_read += len(part)
        if part:
            print(part.decode("utf-8", "replace"), end="", flush=True)  # noqa: T201  # the log that Ray itself shows
        return part


class _Road:
    """The relay's end of its worker's socket; calls in flight are the controller's to fail."""

    def __init__(self, wire: zmq.Socket[bytes], receive: Any) -> None:  # Any: `channel.Receive`
        self.channel = Channel(wire, receive, num_plain=1, bundles=True)

    def fail(self, error: ArealError, *, final: bool) -> None:
        """Nothing: the controller hears of the state."""

    def recover(self) -> None:
        """Nothing: the controller hears of the state."""

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.channel.close()


def _given_by_ray(job: Job) -> Sequence[str]:
    if job.device == CPU:
        return ()
    (resource,) = [device.resource for device in accelerators(default_registry()) if device.name == job.device]
    ids: Sequence[str] = ray.get_runtime_context().get_accelerator_ids().get(resource, ())
    return ids
