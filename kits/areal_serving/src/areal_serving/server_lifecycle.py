"""One server's whole life: started, watched, brought back when it dies or hangs, ended.

Knows: which server serves, and how often one may be brought back.
Does not know: requests or weights; whoever owns it brings a new server up to date (`revive`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import ArealError, GenerationFailed, WorkerError
from areal_core.contract.inference import InferenceSpec
from areal_serving.dialect import Dialect, ServerFacts
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.launch import Launcher, Up
from areal_serving.options import ServedOptions
from areal_serving.server import ServerProcess
from areal_torch.owned_folder import OwnedFolder

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ATTEMPTS = 4
"""Servers, or connections, one call may lose before it fails."""
_LOOKS = 10
"""How often within `hang_timeout_s` a server is asked for a sign of life."""


class ServerLifecycle:
    """Keeps one server running. Everything is called in one event loop.

    Args:
        python: the engine's interpreter; "" when `options.url` names a server.
        revive: brings a server that was started again to the state of the one that died.
        beats: tells tokens generated so far, and whether tokens ought to be computed.
        given_up: told once, that there will be no server any more and why; also by `close`.
        traced: whether its ranks are to be traced in some steps, which a server may have to know when it starts.
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
        given_up: Callable[[], None],
        traced: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._name = dialect.name
        self._dialect = dialect
        self._options = options
        self._max_restarts = options.max_restarts if spec.part is None else 0  # the other hosts' parts end with it
        self._revive = revive
        self._beats = beats
        self._given_up = given_up
        self._clock = clock or SystemClock()
        self._folder = OwnedFolder(Path(tempfile.gettempdir()), f"areal-{dialect.name}")
        self.traces = self._folder.path / "traces" if traced else None
        """Where its profiler writes, see `Launch`."""
        if self.traces is not None:
            self.traces.mkdir(mode=0o700)
        self._launcher = Launcher(
            dialect=dialect,
            spec=spec,
            options=options,
            python=python,
            folder=self._folder.path,
            traces=self.traces,
            clock=self._clock,
        )
        self._up: Up | None = None
        self._changed = asyncio.Condition()
        self._lost: GenerationFailed | None = None
        self._watching: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self.num_restarts = 0

    @property
    def folder(self) -> Path:
        """Return a private folder that goes with this object."""
        return self._folder.path

    @property
    def serving(self) -> Api | None:
        """Return the server that answers, None while there is none."""
        return self._up.api if self._up else None

    @property
    def process_id(self) -> int | None:
        """Return the process all of the server's are children of, None while there is none or it is not ours."""
        return self._up.process.pid if self._up and self._up.process else None

    def tail(self, lines: int = 20) -> str:
        """Return the last lines the server wrote, "" while there is none or it is not ours."""
        return self._up.process.tail(lines) if self._up and self._up.process else ""

    @property
    def lost(self) -> GenerationFailed | None:
        """Return why there will be no server any more, None while there may be one; each time another object."""
        error = self._lost
        return GenerationFailed(error.what, why=error.why, fix=error.fix) if error else None

    async def start(self) -> ServerFacts:
        """Start it, or find the one that runs, and ask what it is.

        Raises:
            ModelError, WorkerError: it ended, or did not serve in time; with its last words.
        """
        up, facts = await self._ready()
        await self._serve(up)
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
        if self._up is None or self._lost is not None:
            error = self.lost
            assert error is not None
            raise error
        return self._up.api

    async def asked(self, question: Callable[[Api], Awaitable[T]]) -> T:
        """Return the server's answer to what may be asked again: of its successor if it ends meanwhile.

        Raises:
            GenerationFailed: no answer again and again, or no success; or it was closed, or given up.
        """
        for _ in range(MAX_ATTEMPTS):
            api = await self.api()
            try:
                return await question(api)
            except ServerGone as error:
                last = error
                await self.gone(api)
            except ServerAnswer as error:
                raise GenerationFailed(f"the {self._name} server failed", why=str(error)) from error
        raise GenerationFailed(f"the {self._name} server does not answer", why=str(last)) from last

    async def gone(self, api: Api) -> None:
        """Take note that a call to `api` had no answer; returns once it is known whether it still serves."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._probe(api))
        await asyncio.shield(self._probing)

    async def replace(self, api: Api) -> None:
        """End a server in a state that nobody knows; another takes its place, see `api`."""
        up = self._up
        if up is None or up.api is not api:
            return
        if up.process is None:
            await self._give_up(
                GenerationFailed(
                    f"the server at {self._options.url} does not answer as expected", fix="start it again, then the run"
                )
            )
            return
        await up.process.end(0.0)  # the watch sees it
        async with self._changed:
            await self._changed.wait_for(lambda: self._up is not up or self._lost is not None)

    async def close(self) -> None:
        """End the server and remove its folder. Idempotent."""
        await self._give_up(
            GenerationFailed(
                "the engine is closed", why="close() was called", fix="send the request to another replica"
            )
        )
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._up is not None:
            await self._up.drop()
            await self._serve(None)
        if self._probing is not None:  # not cancelled: others wait for it, and nothing answers any more
            await asyncio.gather(self._probing, return_exceptions=True)
        self._folder.close()

    async def _ready(self) -> tuple[Up, ServerFacts]:
        up = await self._launcher.up()
        try:
            return up, await self._dialect.facts(up.api)
        except BaseException as error:
            await up.drop()
            if isinstance(error, (ServerGone, ServerAnswer)):
                raise WorkerError(
                    f"the {self._name} server did not say what it is",
                    why="\n".join((str(error), up.process.tail() if up.process else "")),
                    fix="read its output in the worker's log",
                ) from error
            raise

    async def _probe(self, api: Api) -> None:
        up = self._up
        if up is None or up.api is not api or self._lost is not None:
            return
        for _ in range(2):
            if up.process is not None and up.process.exit_code() is not None:
                break
            if await self._launcher.healthy(api):
                return
        await self.replace(api)

    async def _watch(self) -> None:
        """Bring the server back whenever it ends; give up after too many times."""
        try:
            while (up := self._up) is not None and up.process is not None:
                await self._until_ended(up.api, up.process)
                await up.drop(0.0)
                await self._serve(None)
                tail, code = up.process.tail(), up.process.exit_code()
                logger.error("the %s server ended with code %s:\n%s", self._name, code, tail)
                await self._bring_back(f"the {self._name} server ended with code {code}", tail)
        except Exception as error:  # whatever it was: nobody else can tell those who wait for a server
            logger.exception("the %s server is not watched any more", self._name)
            await self._give_up(GenerationFailed(f"the {self._name} server cannot be watched", why=repr(error)))

    async def _until_ended(self, api: Api, process: ServerProcess) -> None:
        ended, hangs = asyncio.ensure_future(process.exited()), asyncio.ensure_future(self._until_hanging(api))
        try:
            await asyncio.wait((ended, hangs), return_when=asyncio.FIRST_COMPLETED)
            if hangs.done():
                hangs.result()
                await process.end(0.0)
        finally:
            for task in (ended, hangs):
                task.cancel()
            await asyncio.gather(ended, hangs, return_exceptions=True)

    async def _until_hanging(self, api: Api) -> None:
        """Return once a server that ought to compute has not for too long."""
        tokens, seen = -1, self._clock.now()
        look_s = self._options.hang_timeout_s / _LOOKS
        while self._clock.now() - seen <= self._options.hang_timeout_s:
            await self._clock.sleep(look_s)
            with contextlib.suppress(ServerGone, ServerAnswer, TimeoutError):
                async with asyncio.timeout(look_s):
                    found, busy = await self._beats(api)
                if found != tokens or not busy:
                    tokens, seen = found, self._clock.now()
        logger.error("the %s server computed nothing for %g s", self._name, self._options.hang_timeout_s)

    async def _bring_back(self, what: str, why: str) -> None:
        while self.num_restarts < self._max_restarts:
            self.num_restarts += 1
            try:
                up, _ = await self._ready()
                try:
                    await self._revive(up.api)
                except BaseException:
                    await up.drop(0.0)
                    raise
            except (ArealError, ServerGone, ServerAnswer) as error:
                logger.error("the %s server did not come back: %s", self._name, error)
                why = str(error)
                continue
            await self._serve(up)
            return
        await self._give_up(
            GenerationFailed(
                what,
                why=f"it was started again {self.num_restarts} times already\n{why}",
                fix="read the worker's log; rollout.options.max_restarts bounds the tries of a replica on one host",
            )
        )

    async def _serve(self, up: Up | None) -> None:
        async with self._changed:
            self._up = up
            self._changed.notify_all()

    async def _give_up(self, error: GenerationFailed) -> None:
        async with self._changed:
            first, self._lost = self._lost is None, self._lost or error
            self._changed.notify_all()
        if first:
            self._given_up()
