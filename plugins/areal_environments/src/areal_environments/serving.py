"""Where an environment's server is: somewhere already, by its URL, or here, as an application in a file.

An application is served on loopback by the controller itself, to those who know the run's own key, until its event loop
ends.

Knows: URLs, applications, what their files import, the key.
Does not know: what is asked.
"""

from __future__ import annotations

import ast
import asyncio
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvicorn
from attrs import Factory, define, field, frozen
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from areal_agentic.user_function import check_function
from areal_core.contract.errors import ConfigError
from areal_core.plugins.install import pip_install
from areal_environments.source import module_of

KEY = "rollout.workflow.options.server"
FIX = "give a URL, or FILE.py:APP or MODULE:APP that names an application (ASGI, such as FastAPI)"
KEEP_ALIVE_S = 120
"""How long an idle connection is kept: longer than the run's client keeps its own, which may ask again meanwhile."""
_URL = ("http://", "https://")
_EXTRAS = {"openenv": "openenv", "nemo_gym": "nemo-gym"}
"""Packages that applications import, and the extras that bring them."""


def check_server(server: str) -> None:
    """Refuse, while a run is planned, an application that is not there or imports what is not installed; runs no file.

    Raises:
        ConfigError: says why.
    """
    if server.startswith(_URL):
        return
    check_function(server, what=f"{KEY}={server} is no application", fix=FIX)
    where = server.rpartition(":")[0]
    missing = _missing(Path(where).expanduser()) if where.endswith(".py") else []
    if missing:
        brings = [f"areal-environments[{_EXTRAS[name]}]" for name in missing if name in _EXTRAS]
        raise ConfigError(
            f"{KEY}={server} cannot be served",
            why=f"it imports {', '.join(missing)}, which is not installed",
            fix=f"{pip_install(brings[0]) if brings else 'install it'}, or serve it elsewhere and give its URL",
        )


def _missing(path: Path) -> list[str]:
    """Return the packages that a file imports at its top level and that neither are installed nor lie beside it."""
    names = []
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Import):
            names += [each.name for each in line.names]
        elif isinstance(line, ast.ImportFrom) and line.module and not line.level:
            names.append(line.module)
    roots = dict.fromkeys(name.partition(".")[0] for name in names)
    beside = {each.stem for each in path.parent.iterdir()}
    return [root for root in roots if root not in beside and root not in sys.modules and find_spec(root) is None]


@frozen
class Address:
    """A server's URL without a slash at its end, and what requests to it carry."""

    url: str
    headers: Mapping[str, str] = Factory(dict)


@define(eq=False)
class Served:
    """One server, started when it is first asked for; an application is imported at once.

    Raises:
        ConfigError: there is no such application.
    """

    server: str
    """A URL, or FILE.py:APP or MODULE:APP."""
    _app: Any = field(default=None, init=False)  # Any: the user's own
    _address: Address | None = field(default=None, init=False)
    _running: _Server | None = field(default=None, init=False)
    _serving: asyncio.Task[None] | None = field(default=None, init=False)
    _starting: asyncio.Lock = field(factory=asyncio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        if self.server.startswith(_URL):
            return
        where, _, name = self.server.rpartition(":")
        self._app = getattr(module_of(where, KEY, FIX), name, None)
        if not callable(self._app):
            raise ConfigError(f"{KEY}={self.server} is no application", why=f"{where} has no {name}", fix=FIX)

    async def address(self) -> Address:
        """Return where it is; an application is listening then.

        Raises:
            ConfigError: the application does not start.
        """
        async with self._starting:
            if self._address is None:
                self._address = await self._found()
            return self._address

    async def close(self) -> None:
        """End what was started here, with its connections. Idempotent."""
        if self._running is not None and self._serving is not None:
            self._running.should_exit = True
            await self._serving
        self._running = self._serving = self._address = None

    async def _found(self) -> Address:
        if self._app is None:
            return Address(self.server.rstrip("/"))
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        key = secrets.token_urlsafe(24)
        guarded: Any = _Guarded(self._app, key)  # Any: uvicorn takes more kinds of applications than it says
        config = uvicorn.Config(
            guarded,
            log_level="error",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._running = _Server(config)
        self._serving = asyncio.create_task(_serve(self._running, listening), name=f"server {self.server}")
        if not await self._running.listens(self._serving):
            raise ConfigError(f"{KEY}={self.server} did not start", why="its lifespan failed", fix=FIX)
        return Address(f"http://127.0.0.1:{listening.getsockname()[1]}", {"Authorization": f"Bearer {key}"})


async def _serve(server: _Server, listening: socket.socket) -> None:
    with listening:
        try:
            await server.serve(sockets=[listening])
        except SystemExit:  # uvicorn's word for an application that does not start
            return


@frozen
class _Guarded:
    """An application that answers only to the run itself."""

    app: ASGIApp
    key: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"").decode("latin-1")
        if scope["type"] == "lifespan":
            await self.app(scope, receive, _unless_cancelled(send))
        elif secrets.compare_digest(given, f"Bearer {self.key}"):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("this server is a run's own", status_code=401)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _unless_cancelled(send: Send) -> Send:
    """Say nothing of an application that ends because the run does: it would be printed as a failure."""

    async def sent(message: Message) -> None:
        task = asyncio.current_task()
        if message["type"] != "lifespan.shutdown.failed" or task is None or not task.cancelling():
            await send(message)

    return sent


class _Server(uvicorn.Server):
    """A server inside of somebody else's process: signals are not its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def listens(self, serving: asyncio.Task[None]) -> bool:
        """Wait until it listens, or has ended instead."""
        waiting = asyncio.create_task(self.ready.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self.ready.is_set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell that it does."""
        await super().startup(sockets)
        if self.started:
            self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield
