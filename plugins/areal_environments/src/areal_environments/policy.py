"""The policy as a chat partner: one conversation with the endpoint, kept here.

Knows: chat completions, and which refusals mean that an episode has no room left.
Does not know: environments, or what becomes of the answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from attrs import define, field

from areal_core.contract.errors import EpisodeFailed

Message = dict[str, Any]  # Any: JSON


@define
class Policy:
    """One conversation. `say` adds a message, `answer` asks for the next one and adds that.

    Example:
        async with conversation(base_url, api_key) as policy:
            policy.say("user", "What is 1 + 2?")
            answer = await policy.answer()
    """

    _http: aiohttp.ClientSession
    _base_url: str
    tools: Sequence[Message] = ()
    messages: list[Message] = field(factory=list)
    num_answers: int = 0

    def say(self, role: str, content: str, **more: object) -> None:
        """Add a message, for example of the role user, or tool with `tool_call_id`."""
        self.messages.append({"role": role, "content": content, **more})

    async def answer(self) -> Message | None:
        """Return the policy's next message, None where the episode has no room for one.

        Raises:
            EpisodeFailed: the endpoint refuses; the first question has no room.
        """
        body: dict[str, Any] = {"model": "policy", "messages": self.messages}
        if self.tools:
            body["tools"] = list(self.tools)
        async with self._http.post(f"{self._base_url}/chat/completions", json=body) as response:
            if response.status != 200:
                said = (await response.text())[:500]
                if self.num_answers and _no_room(response.status, said):
                    return None
                raise EpisodeFailed(f"the endpoint answered {response.status}", why=said)
            choice = (await response.json())["choices"][0]
        self.num_answers += 1
        message: Message = choice["message"]
        self.messages.append({key: value for key, value in message.items() if value is not None or key == "content"})
        return message


@asynccontextmanager
async def conversation(base_url: str, api_key: str, tools: Sequence[Message] = ()) -> AsyncIterator[Policy]:
    """Open a conversation with the policy for as long as the block runs; the episode's own deadline bounds it."""
    headers, unbounded = {"Authorization": f"Bearer {api_key}"}, aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, timeout=unbounded, trust_env=False) as http:
        yield Policy(http, base_url, tools)


def _no_room(status: int, said: str) -> bool:
    """Whether the episode made all its requests, or its context is full: it ends with what it has."""
    return status == 429 or (status == 400 and "context_length_exceeded" in said)
