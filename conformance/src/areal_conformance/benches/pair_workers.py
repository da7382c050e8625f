"""Workers that live in this process, with the host, the codec and the errors of real ones.

Knows: how a call becomes the host's, and what can be done to one on its way.
Does not know: engines, processes or sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from areal_core.contract.errors import ArealError, RemoteError, WorkerDied, WorkerTimeout
from areal_core.contract.train import EngineInfo
from areal_core.worker.codec import decode, encode
from areal_core.worker.service import Host

Trouble = Exception | Callable[[Any], Any]
"""Raised in place of a call, or applied to its answer. Any: the answer of the method it is for."""


class SeatedWorker:
    """Satisfies `contract.Worker`. Arguments and answers travel through the codec, as between processes."""

    host = "127.0.0.1"

    def __init__(
        self, worker_id: str, host: Host, starting: asyncio.Lock, *, started: EngineInfo | None = None
    ) -> None:
        """Take a seat. Who shares `starting` starts one at a time: two threads cannot load models.

        `started` is the answer of a host that was started before, for its next `start`.
        """
        self.started = started
        self.id = worker_id
        self._starting = starting
        self.seat = host
        self.calls: list[str] = []
        self.faults: dict[str, Trouble] = {}
        self.fired: list[str] = []

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a method of the hosted engine. Any: as in the contract."""
        self.calls.append(method)
        if method == "start" and self.started is not None:
            return self.started
        fault = self.faults.get(method)
        if isinstance(fault, Exception):
            self.fired.append(method)
            if isinstance(fault, WorkerDied):
                self.faults = dict.fromkeys(("generate", "status", "abort_weights", method), fault)
            raise fault
        try:
            async with asyncio.timeout(timeout_s), self._starting if method == "start" else contextlib.nullcontext():
                answer = await self.seat.call(method, tuple(_copied(args)))
        except TimeoutError as error:
            raise WorkerTimeout(f"{self.id} did not answer {method!r} within {timeout_s:g} s") from error
        except ArealError:
            raise
        except Exception as error:
            raise RemoteError(f"{method!r} raised in {self.id}", why=f"{type(error).__name__}: {error}") from error
        answer = _copied([answer])[0]
        if method == "start" and isinstance(answer, EngineInfo):
            self.started = answer
        if fault is not None:
            self.fired.append(method)
            return fault(answer)
        return answer


def _copied(values: Any) -> Any:
    """Send values through the codec."""
    return decode([bytes(frame) for frame in encode(list(values))])
