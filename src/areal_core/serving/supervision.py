"""One server's whole life: started, watched, brought back when it dies or hangs, ended.

Knows: processes, health, how often a server may be brought back.
Does not know: requests or weights; whoever owns it brings a new server up to date (`revive`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from attrs import define, frozen

from areal_core.contract.errors import ArealError, GenerationFailed, ModelError, PlanError, WorkerError
from areal_core.contract.inference import InferenceSpec
from areal_core.serving.dialect import Dialect, Launch, ServerFacts
from areal_core.serving.http import Api, ServerAnswer, ServerGone
from areal_core.serving.options import ServedOptions
from areal_core.serving.server import ServerProcess, free_port
from areal_core.weights.folder import OwnedFolder

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""Between two questions to a server that starts."""
_PROBE_S = 5.0
_PORT_TAKEN = "address already in use"


@frozen(kw_only=True)
class _Up:
    """A server that answers. `process` is None for one that somebody else runs."""

    api: Api
    process: ServerProcess | None


@define(kw_only=True)
class _Pulse:
    """When a sign of life was last seen, and of what."""

    tokens: int = -1
    seen_s: float = 0.0


class SupervisedServer:
    """Keeps one server running. Everything is called in one event loop.

    Args:
        python: the engine's interpreter; "" when `options.url` names a server.
        revive: brings a server that was started again to the state of the one that died.
        beats: tells tokens generated so far, and whether tokens ought to be computed now.
    """

    def __init__(
        self,
        dialect: Dialect,
        spec: InferenceSpec,
        options: ServedOptions,
        *,
        python: str,
        revive: Callable[[Api], Awaitable[None]],
        beats: Callable[[Api], Awaitable[tuple[int, bool]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dialect = dialect
        self._spec = spec
        self._options = options
        self._python = python
        self._revive = revive
        self._beats = beats
        self._clock = clock
        self._folder: OwnedFolder | None = None
        self._up: _Up | None = None
        self._changed = asyncio.Condition()
        self._lost: ArealError | None = None
        self._watching: asyncio.Task[None] | None = None
        self._process: ServerProcess | None = None
        self.num_restarts = 0

    @property
    def folder(self) -> Path:
        """Return a private folder that goes with this object."""
        if self._folder is None:
            self._folder = OwnedFolder(Path(tempfile.gettempdir()), f"areal-{self._dialect.name}")
        return self._folder.path

    @property
    def serving(self) -> Api | None:
        """Return the server that answers, None while there is none."""
        return self._up.api if self._up else None

    async def start(self) -> ServerFacts:
        """Start it, or find the one that runs, and ask what it is.

        Raises:
            ModelError, WorkerError: it ended, or did not serve in time; with its last words.
        """
        up = await (self._find() if self._options.url else self._launch())
        try:
            facts = await self._dialect.facts(up.api)
        except BaseException:
            await _drop(up)
            raise
        self._up = up
        if up.process is not None:
            self._watching = asyncio.ensure_future(self._watch())
        return facts

    async def api(self) -> Api:
        """Return the server that answers; wait while one is brought back.

        Raises:
            GenerationFailed: it was closed, or given up.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._up is not None or self._lost is not None)
        if self._up is None:
            assert self._lost is not None
            raise GenerationFailed(self._lost.what, why=self._lost.why, fix=self._lost.fix)
        return self._up.api

    async def gone(self, api: Api) -> None:
        """Take note that a call to `api` had no answer; returns once it is known whether it still serves."""
        up = self._up
        if up is None or up.api is not api:
            return
        for _ in range(2):
            if up.process is not None and up.process.exit_code() is not None:
                break
            with contextlib.suppress(ServerGone, ServerAnswer):
                if await asyncio.wait_for(self._dialect.healthy(api), _PROBE_S):
                    return
        if up.process is None:
            await self._lose(GenerationFailed(f"the server at {self._options.url} is gone", fix="start it again"))
            return
        await up.process.end(0.0)  # the watch sees it
        async with self._changed:
            await self._changed.wait_for(lambda: self._up is not up)

    async def close(self) -> None:
        """End the server and remove its folder. Idempotent."""
        await self._lose(GenerationFailed("the engine is closed", fix="send the request to another replica"))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        up, self._up = self._up, None
        if up is not None:
            await _drop(up)
        elif self._process is not None:
            await self._process.end()
        if self._folder is not None:
            self._folder.close()

    async def _launch(self) -> _Up:
        for last in (False, True):
            process, api = self._begin()
            self._process = process
            try:
                await self._until_healthy(process, api)
            except BaseException as error:
                await api.close()
                await process.end(0.0)
                if isinstance(error, ArealError) and not last and _PORT_TAKEN in process.tail(60).lower():
                    continue
                raise
            return _Up(api=api, process=process)
        raise AssertionError

    def _begin(self) -> tuple[ServerProcess, Api]:
        port, key = free_port(), secrets.token_urlsafe(32)
        launch = Launch(spec=self._spec, python=self._python, port=port, key=key, folder=self.folder)
        process = ServerProcess(self._dialect.name, self._dialect.command(launch))
        return process, Api(f"http://127.0.0.1:{port}", key)

    async def _until_healthy(self, process: ServerProcess, api: Api) -> None:
        deadline = self._clock() + self._options.start_timeout_s
        while not await self._is_healthy(api):
            code = process.exit_code()
            if code is not None:
                await process.end()
                kind = ModelError if self._dialect.blames_model(process.tail(200)) else WorkerError
                raise kind(
                    f"the {self._dialect.name} server ended with code {code} before it served",
                    why=process.tail(),
                    fix="read its lines in the worker's log",
                )
            if self._clock() > deadline:
                raise WorkerError(
                    f"the {self._dialect.name} server did not serve within {self._options.start_timeout_s:g} s",
                    why=process.tail(),
                    fix="raise rollout.options.start_timeout_s, and scheduler.start_timeout_s with it",
                )
            await asyncio.sleep(LOOK_S)

    async def _is_healthy(self, api: Api) -> bool:
        try:
            return await self._dialect.healthy(api)
        except (ServerGone, ServerAnswer):
            return False

    async def _find(self) -> _Up:
        variable = self._options.key_env
        key = os.environ.get(variable, "") if variable else ""
        if variable and not key:
            raise PlanError(
                f"environment variable {variable} is not set",
                why="rollout.options.key_env names it as the key of the server",
                fix=f"export {variable}=...",
            )
        api = Api(self._options.url, key)
        if not await self._is_healthy(api):
            await api.close()
            raise WorkerError(
                f"no healthy {self._dialect.name} server at {self._options.url}",
                why="it does not answer, or not with success",
                fix="check rollout.options.url and key_env",
            )
        return _Up(api=api, process=None)

    async def _watch(self) -> None:
        """Bring the server back whenever it ends; give up after too many times."""
        while self._up is not None:
            up = self._up
            assert up.process is not None
            pulse = asyncio.ensure_future(self._feel(up))
            try:
                await up.process.exited()
            finally:
                pulse.cancel()
            tail, code = up.process.tail(), up.process.exit_code()
            await _drop(up)
            async with self._changed:
                self._up = None
                self._changed.notify_all()
            logger.error("the %s server ended with code %s:\n%s", self._dialect.name, code, tail)
            if self.num_restarts >= self._options.max_restarts:
                await self._lose(
                    GenerationFailed(
                        f"the {self._dialect.name} server ended with code {code}",
                        why=f"it was started again {self.num_restarts} times already\n{tail}",
                        fix="read the worker's log; rollout.options.max_restarts bounds the tries",
                    )
                )
                return
            self.num_restarts += 1
            await self._bring_back()

    async def _bring_back(self) -> None:
        try:
            up = await self._launch()
            try:
                await self._revive(up.api)
            except BaseException:
                await _drop(up)
                raise
        except (ArealError, ServerGone, ServerAnswer) as error:
            what = error.what if isinstance(error, ArealError) else str(error)
            await self._lose(GenerationFailed(f"the {self._dialect.name} server could not be brought back", why=what))
            return
        async with self._changed:
            self._up = up
            self._changed.notify_all()

    async def _feel(self, up: _Up) -> None:
        """Kill a server that ought to compute and does not."""
        pulse = _Pulse(seen_s=self._clock())
        while True:
            await asyncio.sleep(self._options.hang_timeout_s / 10)
            tokens, busy = pulse.tokens, True
            with contextlib.suppress(ServerGone, ServerAnswer):
                tokens, busy = await self._beats(up.api)
            if tokens != pulse.tokens or not busy:
                pulse = _Pulse(tokens=tokens, seen_s=self._clock())
            elif self._clock() - pulse.seen_s > self._options.hang_timeout_s:
                logger.error(
                    "the %s server computed nothing for %g s", self._dialect.name, self._options.hang_timeout_s
                )
                assert up.process is not None
                await up.process.end(0.0)
                return

    async def _lose(self, error: ArealError) -> None:
        async with self._changed:
            if self._lost is None:
                self._lost = error
            self._changed.notify_all()


async def _drop(up: _Up) -> None:
    await up.api.close()
    if up.process is not None:
        await up.process.end()
