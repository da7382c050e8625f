"""One worker of this machine: its process, its calls and its pulse, and what they say about its state.

Knows: how the three together become a `WorkerStatus`, and that a lost worker's calls fail at once.
Does not know: the other workers of its gang (`local_scheduler`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import zmq

from areal_core.contract.errors import ArealError, ResourceError, WorkerDied
from areal_core.contract.scheduler import WorkerState, WorkerStatus
from areal_core.worker.supervise import failure
from areal_local.scheduler.bootstrap import Ready, ready_from
from areal_local.scheduler.channel import KeyPair, connected
from areal_local.scheduler.heartbeat import Pulse
from areal_local.scheduler.process import WorkerProcess
from areal_local.scheduler.stacks import STACKS

Context = zmq.Context[zmq.Socket[bytes]]
_REAP_S = 2.0
_LOOK_S = 0.1


class Client(Protocol):
    """Whoever has calls in flight to a worker, as the worker's state ends them."""

    def fail(self, error: ArealError, *, final: bool) -> None:
        """End every call in flight with this error, and every later one until `recover`; final is for ever."""

    def recover(self) -> None:
        """Take calls again after a failure that was not final."""

    def close(self) -> None:
        """Fail what is in flight and close the socket. Idempotent."""


C = TypeVar("C", bound=Client)


class LocalWorker(Generic[C]):
    """Starting at first; running once it answered; silent or ended when it is not what it was."""

    def __init__(
        self,
        role: str,
        rank: int,
        process: WorkerProcess,
        public_key: str,
        host: str,
        at: str,
        client: Callable[[str, str, zmq.Socket[bytes]], C],
    ) -> None:
        """Watch a process whose handle tells `host`, and whose sockets are `at` an address or in a folder.

        `client` makes the handle once the worker answers, of its id, its host and a socket that is connected to it.
        """
        self._make_client = client
        self.id = f"{role}/{rank}"
        self.process = process
        self._role = role
        self._rank = rank
        self.public_key = public_key
        self._host, self._at = host, at
        self._state = WorkerState.STARTING
        self._tail: tuple[str, ...] = ()
        self._ready: Ready | None = None
        self._client: C | None = None
        self._pulse: Pulse | None = None

    @property
    def running(self) -> bool:
        """Return whether it took calls at the last look."""
        return self._state is WorkerState.RUNNING

    @property
    def client(self) -> C:
        """Return the handle the controller calls; there is one once `become_ready` returned."""
        assert self._client is not None, "the worker has not answered yet"
        return self._client

    async def become_ready(self, context: Context, keys: KeyPair, *, max_gap_s: float) -> None:
        """Wait until the worker listens and has proved its key; no deadline of its own.

        Raises:
            WorkerDied: it ended first.
            ResourceError: it cannot serve this controller.
        """
        line = await self.process.ready_line()
        if not line:
            await self.process.exited(_REAP_S)
            raise failure(self.status()) or WorkerDied(f"worker {self.id} closed its pipe while starting")
        ready = ready_from(line)
        if ready.error:
            raise ResourceError(f"worker {self.id} cannot serve this run", why=ready.error)
        key, at = self.public_key, self._at
        self._client = self._make_client(self.id, self._host, connected(context, keys, key, at, ready.rpc_port))
        self._pulse = Pulse(connected(context, keys, key, at, ready.heartbeat_port), max_gap_s=max_gap_s)
        while not await self._pulse.heard(within_s=_LOOK_S):
            if (error := failure(self.status())) is not None:
                raise error
        self._state = WorkerState.RUNNING

    def status(self) -> WorkerStatus:
        """Return the state; an end is seen at once, silence at the next `look`."""
        self._note_end()
        return WorkerStatus(
            id=self.id,
            role=self._role,
            rank=self._rank,
            state=self._state,
            pid=self.process.pid,
            exit_code=self.process.exit_code(),
            log_path=str(self.process.log_path),
            log_tail=self._tail,
        )

    def look(self, now: float, silent_after_s: float) -> None:
        """Bring the state up to date; a worker found ended or silent fails every call in flight."""
        if self._pulse is None or self._client is None or self._state is WorkerState.STARTING:
            return
        if self._note_end():
            return
        self._pulse.beat(now)
        silent = self._pulse.silent_s >= silent_after_s
        if silent and self._state is WorkerState.RUNNING:
            self._tail, self._state = self.process.tail(), WorkerState.SILENT
            self._fail(final=False)
        elif not silent and self._state is WorkerState.SILENT:
            self._tail, self._state = (), WorkerState.RUNNING
            self._client.recover()

    def write_stacks(self) -> None:
        """Have the process write the stacks of its threads into its log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, STACKS)

    async def end(self, patience_s: float) -> None:
        """End the process and everything that belongs to it. Idempotent."""
        if self._client is not None:
            self._client.close()
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None
        await self.process.end(patience_s)

    def _note_end(self) -> bool:
        if self._state is not WorkerState.ENDED and self.process.exit_code() is not None:
            self._tail, self._state = self.process.tail(), WorkerState.ENDED
            self._fail(final=True)
        return self._state is WorkerState.ENDED

    def _fail(self, *, final: bool) -> None:
        error = failure(self.status())
        if self._client is not None and error is not None:
            self._client.fail(error, final=final)
