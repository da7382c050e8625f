"""The fleet, as the sessions of a rollout process see it: requests go to the controller, whose pool serves them.

Knows: which requests wait for an answer, and who answered a session last.
Does not know: replicas, weight updates or interruptions; the pool has them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from areal_core.contract.errors import ArealError
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.optional import ToolParse
from areal_rollouts.messages import Answer, Ask, Drop, Message, Parse

T = TypeVar("T", Generation, ToolParse)
_MOST_HOMES = 4096
"""Sessions whose replica is remembered."""


class AskedFleet:
    """Implements `areal_core.rollout.session.Fleet` at the end of a line to the controller."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._homes: OrderedDict[str, str] = OrderedDict()

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        """Have the controller's pool generate; raises as that does."""
        number = next(self._numbers)
        return await self._answer(number, Ask(number=number, request=request, affinity=affinity), affinity, Generation)

    async def parse_tool_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]], *, affinity: Sequence[str] = ()
    ) -> ToolParse:
        """Have a replica read an output; raises as the pool does. Any: JSON."""
        number = next(self._numbers)
        message = Parse(number=number, text=text, tools=[dict(tool) for tool in tools], affinity=affinity)
        return await self._answer(number, message, affinity, ToolParse)

    def home(self, affinity: Sequence[str]) -> str:
        """Return the replica that answered the session last, empty if none did."""
        return self._homes.get(affinity[0], "") if affinity else ""

    def answered(self, answer: Answer) -> None:
        """Hand an answer to who waits for it, if somebody still does."""
        waiting = self._waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _answer(self, number: int, message: Message, affinity: Sequence[str], kind: type[T]) -> T:
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message)
            answer = await waiting
        except asyncio.CancelledError:
            self._send(Drop(number=number))
            raise
        finally:
            del self._waiting[number]
        for name in affinity[:1]:
            self._homes[name] = answer.home
            self._homes.move_to_end(name)
            while len(self._homes) > _MOST_HOMES:
                self._homes.popitem(last=False)
        if isinstance(answer.value, ArealError):
            raise answer.value
        assert isinstance(answer.value, kind)
        return answer.value
