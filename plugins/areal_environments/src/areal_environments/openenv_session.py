"""One session of an OpenEnv server, over its own WebSocket protocol: a connection is an instance of the environment.

Knows: messages, answers, and which errors are the action's and which the environment's.
Does not know: what an action is made of.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from attrs import frozen

from areal_core.contract.errors import EpisodeFailed
from areal_environments.serving import Address

Json = dict[str, Any]  # Any: JSON
_INVALID = "VALIDATION_ERROR"
"""The server's code for an action that is none: the policy is told, and the episode goes on."""


@frozen
class Session:
    """One connection, which is one instance of the environment."""

    socket: aiohttp.ClientWebSocketResponse
    timeout_s: float

    async def told(self, kind: str, data: Json) -> Json:
        """Return what the server answers: `observation`, `reward`, `done`; or `refused`, why the action is none."""
        try:
            await self.socket.send_json({"type": kind, "data": data})
            answer = await self.socket.receive_json(timeout=self.timeout_s)
        except (TypeError, ValueError, OSError, aiohttp.ClientError) as error:  # TypeError: it is closed, no text came
            raise EpisodeFailed(
                f"the environment gave no answer to {kind}",
                why=f"{type(error).__name__}: {error}",
                fix="look at its log; raise step_timeout_s if it is slow",
            ) from error
        told: Json = answer.get("data") or {}
        if answer.get("type") == "observation":
            return told
        if kind == "step" and told.get("code") == _INVALID:
            return {"refused": f"This is no action: {json.dumps(told.get('errors'), default=str)[:500]}"}
        full = told.get("code") == "CAPACITY_REACHED"
        raise EpisodeFailed(
            f"the environment refuses {kind}",
            why=f"{told.get('code')}: {told.get('message')}",
            fix="lower rollout.workflow.options.sessions, or raise the server's max_concurrent_envs" if full else "",
        )


@asynccontextmanager
async def opened(address: Address, timeout_s: float) -> AsyncIterator[Session]:
    """Open a session for as long as the block runs.

    Raises:
        EpisodeFailed: there is no server.
    """
    url, headers = f"{address.url}/ws", dict(address.headers)
    async with aiohttp.ClientSession(trust_env=False) as http:
        try:
            async with asyncio.timeout(timeout_s):
                socket = await http.ws_connect(url, headers=headers, max_msg_size=0)
        except (OSError, aiohttp.ClientError) as error:  # TimeoutError is an OSError
            why, fix = f"{type(error).__name__}: {error}", "start it, or correct rollout.workflow.options.server"
            raise EpisodeFailed(f"no environment at {url}", why=why, fix=fix) from error
        async with socket:
            yield Session(socket, timeout_s)
