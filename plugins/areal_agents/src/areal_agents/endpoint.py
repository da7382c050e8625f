"""The endpoint `http`: where agents ask, one session behind one key.

Knows: which sessions are open, the renderer, when the server listens.
Does not know: paths (`paths`), keys of requests (`gate`), what a session may ask (`episode`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.types import ASGIApp

from areal_agentic.endpoint import SessionLimits
from areal_agentic.renderer import BoundRenderer, Renderer
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.episode import AgentSession
from areal_agents.gate import Gate
from areal_agents.loopback import make_room_for_connections
from areal_agents.paths import Paths
from areal_agents.server import Server
from areal_agents.workflows.talks import told_of
from areal_core.contract.workflow import Session
from areal_core.plugins.registry import current_registry

_PATIENCE_S = 10.0
"""A stream that says nothing for longer is given up by some clients."""


class Endpoint:
    """Role `endpoint`: one server of a run, and the sessions that are open."""

    def __init__(self, config: EndpointConfig | None = None, *, patience_s: float = _PATIENCE_S) -> None:
        """Build the renderer; nothing listens before `start`."""
        self._config = config or EndpointConfig()
        self._renderer = _renderer(self._config)
        self._bound: dict[int, tuple[object, BoundRenderer]] = {}
        self._sessions: dict[str, AgentSession] = {}
        self._patience_s = patience_s
        self._server = Server(self.app())
        self._starting = asyncio.Lock()

    @property
    def url(self) -> str:
        """Return the base URL of OpenAI's clients."""
        return f"http://127.0.0.1:{self._server.port}/v1"

    async def start(self) -> None:
        """Listen on a free port of loopback, until the event loop ends. Idempotent."""
        async with self._starting:
            if not self._server.port:
                make_room_for_connections()
                await self._server.start()

    async def close(self) -> None:
        """End it; requests in flight are cancelled. Idempotent."""
        for session in self._sessions.values():
            session.close()
        await self._server.close()

    @contextmanager
    def open(self, session: Session, limits: SessionLimits | None = None) -> Iterator[AgentSession]:
        """Open a session for as long as the block runs; its key opens nothing afterwards."""
        opened = AgentSession(
            session=session,
            config=self._config,
            limits=limits or SessionLimits(),
            bind=lambda: self._bind(session.tokenizer),
        )
        self._sessions[opened.key] = opened
        try:
            yield opened
        finally:
            del self._sessions[opened.key]
            opened.close()

    def writes(self, tokenizer: object) -> str:
        """Return the name of the renderer of a tokenizer, for people."""
        return told_of(self._bind(tokenizer), self._config.renderer)

    def app(self) -> ASGIApp:
        """Return the application, for a server that listens elsewhere."""
        return Gate(Paths(self._patience_s).app(), self._sessions)

    def _bind(self, tokenizer: object) -> BoundRenderer:
        if id(tokenizer) not in self._bound:
            self._bound[id(tokenizer)] = tokenizer, self._renderer.bind(tokenizer)
        return self._bound[id(tokenizer)][1]


def _renderer(config: EndpointConfig) -> Renderer:
    """Return the renderer that the options name; the chat's own options are given to it where they are set."""
    options: dict[str, Any] = {}  # Any: the renderer's own
    if config.template:
        options["template"] = dict(config.template)
    if config.enable_thinking is not None:
        options["enable_thinking"] = config.enable_thinking
    path = "rollout.workflow.options.renderer_options"
    made = current_registry().build("renderer", config.renderer, {**options, **config.renderer_options}, path)
    return cast(Renderer, made)
