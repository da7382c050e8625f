"""A server in somebody else's event loop.

Knows: uvicorn, sockets.
Does not know: what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_S = 120
"""How long an idle connection is kept: longer than any client keeps its own (OpenAI's 5 s, aiohttp 15, Go 90), so that
none sends a request into one that is just being closed. A client that has gone closes it at once."""


class Server:
    """One application on one port, from `start` to `close`."""

    def __init__(self, app: ASGIApp) -> None:
        """Take the application; nothing listens yet."""
        self.port = 0
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen on a bound socket, which is closed in the end, or on a free port of loopback."""
        if listening is None:
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]

        async def serve() -> None:
            with listening:
                try:
                    await self._server.serve(sockets=[listening])
                except asyncio.CancelledError:  # the loop ends, and nobody closed
                    self._server.leave()
                    raise

        self._serving = asyncio.create_task(serve(), name="agents' endpoint")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self._serving  # raises why it ended

    async def close(self) -> None:
        """Take no more requests, let those answer that are there, for a second at most. Idempotent."""
        if self._serving is not None:
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
            self._serving = None


class _Uvicorn(uvicorn.Server):
    """Leaves the process's signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell that it does."""
        await super().startup(sockets)
        self.ready.set()

    def leave(self) -> None:
        """Close what is open at once; uvloop waits for ever for what is not, where warnings are errors."""
        for listener in getattr(self, "servers", ()):
            listener.close()
        for connection in self.server_state.connections:
            if connection.transport is not None:
                connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
