"""One rollout process, as the controller sees it: episodes go out, requests for the fleet come in.

Knows: which episodes the process makes, and which requests of it the pool is serving.
Does not know: which process an episode should go to, or what replaces one that is lost (`processes`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from areal_core.contract.errors import ArealError, RolloutError, WorkerError
from areal_core.contract.inference import Generation
from areal_core.contract.optional import ToolParse
from areal_core.contract.scheduler import Worker
from areal_core.observe.events import EventSink
from areal_core.plugins.blame import told
from areal_core.rollout.session import Fleet
from areal_local.rewards.messages import delivered
from areal_rollouts.line import Line
from areal_rollouts.messages import Answer, Ask, Drop, Made, Make, Message, Parse, Stop, Tell, pack, unpack

NEWS_S = 10.0
"""How long a process waits for something to tell before it says that there is nothing."""
STOP_S = 10.0
"""How long an episode that was stopped may take to end."""


class ProcessLost(Exception):
    """The process that made an episode is gone, and with it the episode."""


class Process:
    """The controller's end of one process. In its event loop."""

    def __init__(
        self,
        worker: Worker,
        *,
        fleet: Fleet,
        silence_s: float,
        tell: EventSink,
        lost: Callable[[Process, ArealError], None],
    ) -> None:
        """Start nothing yet.

        Args:
            silence_s: without an answer for so long, a process is lost.
            lost: called once if it is.
        """
        self.worker = worker
        self._fleet, self._silence_s, self._tell, self._lost = fleet, silence_s, tell, lost
        self._line = Line()
        self._numbers = itertools.count()
        self._making: dict[int, asyncio.Future[Made]] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._pumps: list[asyncio.Task[None]] = []
        self._error: ArealError | None = None

    @property
    def num_making(self) -> int:
        """Return how many episodes it makes."""
        return len(self._making)

    def start(self) -> None:
        """Begin to talk to the process, whose workflow is there."""
        self._pumps = [asyncio.create_task(pump) for pump in (self._pump(self._write), self._pump(self._read))]

    async def make(
        self, message: Callable[[int], Make], late: Callable[[], bool], stopped: Callable[[Made], None]
    ) -> Made:
        """Have the process make an episode, and return what became of it.

        Cancelling it stops the episode there; `late` tells then whether its time is over, and `stopped` takes what is
        heard of its end within STOP_S.

        Raises:
            ProcessLost: it is gone; the episode can be made elsewhere.
            CodecError: the row does not travel.
        """
        number = next(self._numbers)
        data = pack(message(number))
        if self._error is not None:
            raise ProcessLost
        ended = self._making[number] = asyncio.get_running_loop().create_future()
        self._line.put(data)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._line.put(pack(Stop(number=number, late=late())))
            done, _ = await asyncio.wait({ended}, timeout=STOP_S)
            if done and ended.exception() is None:
                stopped(ended.result())
            raise
        finally:
            del self._making[number]
            if ended.done() and not ended.cancelled():
                ended.exception()  # looked at: it is told by whoever lost the process

    def fail(self, error: ArealError) -> None:
        """Take the process for lost: its episodes end, its requests are dropped. Idempotent."""
        if self._error is not None:
            return
        self._error = error
        self._end()
        for ended in self._making.values():
            if not ended.done():
                ended.set_exception(ProcessLost())
        self._lost(self, error)

    async def close(self) -> None:
        """Stop talking, once the process closed what it has, if it still answers. Idempotent."""
        if self._error is None:
            self._error = RolloutError(f"{self.worker.id} is closed")
            with suppress(ArealError):  # whoever placed it ends it
                await self.worker.call("close", timeout_s=STOP_S)
        tasks = self._end()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> list[asyncio.Task[None]]:
        this = asyncio.current_task()
        tasks = [task for task in (*self._pumps, *self._asked.values()) if task is not this]
        for task in tasks:
            task.cancel()
        return tasks

    async def _pump(self, work: Callable[[], Any]) -> None:  # Any: a coroutine
        try:
            while True:
                await work()
        except ArealError as error:
            self.fail(error)
        except Exception as error:  # a bug of ours must not leave episodes waiting for ever
            self.fail(WorkerError(f"the line to {self.worker.id} broke", why=told(error)))

    async def _write(self) -> None:
        await self.worker.call("tell", await self._line.take(), timeout_s=self._silence_s)

    async def _read(self) -> None:
        for data in await self.worker.call("news", NEWS_S, timeout_s=NEWS_S + self._silence_s):
            self._hear(unpack(data))

    def _hear(self, message: Message) -> None:
        if isinstance(message, Ask | Parse):
            self._asked[message.number] = asyncio.create_task(self._answer(message))
        elif isinstance(message, Drop):
            if (task := self._asked.get(message.number)) is not None:
                task.cancel()
        elif isinstance(message, Made):
            ended = self._making.get(message.number)
            if ended is not None and not ended.done():
                ended.set_result(message)
        elif isinstance(message, Tell):
            self._tell(message.kind, **delivered(message.fields))

    async def _answer(self, message: Ask | Parse) -> None:
        """Have the fleet do what a session asked for, and send what comes of it."""
        value: Generation | ToolParse | ArealError
        try:
            if isinstance(message, Ask):
                value = await self._fleet.generate(message.request, affinity=message.affinity)
            else:
                value = await self._fleet.parse_tool_calls(message.text, message.tools, affinity=message.affinity)
        except ArealError as error:
            value = error
        except Exception as error:
            value = RolloutError(f"a request of {self.worker.id} failed", why=told(error))
        finally:
            del self._asked[message.number]
        self._line.put(pack(Answer(number=message.number, value=value, home=self._fleet.home(message.affinity))))
