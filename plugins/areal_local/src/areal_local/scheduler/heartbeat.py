"""Signs of life that do not depend on Python: the worker's echo runs in C and needs no interpreter lock.

Knows: the echo in the worker, and how the controller measures silence.
Does not know: what a worker is doing; a long step, an import or a held lock is not silence, a stopped process is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

import zmq

from areal_local.scheduler.channel import Channel
from areal_worker.codec import Frame


def start_echo(socket: zmq.Socket[bytes]) -> threading.Thread:
    """Send every message of a ROUTER back to where it came from, until its context ends. In the worker."""

    def run() -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            zmq.proxy(socket, socket)  # runs inside libzmq with the lock released
        socket.close(linger=0)

    thread = threading.Thread(target=run, name="areal-heartbeat", daemon=True)
    thread.start()
    return thread


class Pulse:
    """The controller's view of one worker's echo. Call `beat` at every look; `silent_s` is what was seen of silence.

    Time in which the controller itself did not look (a blocked loop, a suspended laptop) counts at
    most `max_gap_s` per look, so a late controller does not take its workers for dead.
    """

    def __init__(self, socket: zmq.Socket[bytes], *, max_gap_s: float) -> None:
        self._channel = Channel(socket, self._on_echo, num_plain=2)
        self._max_gap_s = max_gap_s
        self._last_look: float | None = None
        self._answered = True
        self._heard = asyncio.Event()
        self.silent_s = 0.0

    async def heard(self, within_s: float) -> bool:
        """Tell whether the worker ever answered, which proves that it holds its key; wait at most `within_s`."""
        if self._answered and not self._heard.is_set():
            self._ping()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._heard.wait()
        return self._heard.is_set()

    def beat(self, now: float) -> None:
        """Account for the time since the last look and send the next ping."""
        if not self._answered and self._last_look is not None:
            self.silent_s += min(now - self._last_look, self._max_gap_s)
        self._last_look = now
        if self._answered:
            self._ping()

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._channel.close()

    def _ping(self) -> None:
        self._answered = False
        self._channel.send([b"beat"])

    def _on_echo(self, _frames: list[Frame]) -> None:
        self._answered = True
        self._heard.set()
        self.silent_s = 0.0
