"""One server from command to first answer.

Knows: ports, keys, how long a start may take, whose fault a failed one is.
Does not know: what happens to the server afterwards (`server_lifecycle`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

from attrs import define, frozen

from areal_core.contract.clock import Clock
from areal_core.contract.errors import ModelError, PlanError, WorkerError
from areal_core.contract.inference import InferenceSpec
from areal_serving.dialect import Dialect, Launch
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.options import ServedOptions
from areal_serving.server import ServerProcess, free_port

LOOK_S = 0.2
"""Between two questions to a server that starts."""
PROBE_S = 5.0
_PORT_TAKEN = "address already in use"


@frozen(kw_only=True, eq=False)
class Up:
    """A server that answers. `process` is None for one that somebody else runs."""

    api: Api
    process: ServerProcess | None

    async def drop(self, patience_s: float = 5.0) -> None:
        """Let go of it, and end it if it is ours. Idempotent."""
        await self.api.close()
        if self.process is not None:
            await self.process.end(patience_s)


@define(kw_only=True)
class Launcher:
    """Starts servers of one kind for one model; `folder` is private to them, `traces` as in `Launch`."""

    dialect: Dialect
    spec: InferenceSpec
    options: ServedOptions
    python: str
    folder: Path
    traces: Path | None
    clock: Clock

    async def up(self) -> Up:
        """Start a server, or find the one that `options.url` names; return once it is healthy.

        Raises:
            ModelError, WorkerError: it ended, or did not serve in time; with its last words.
            PlanError: the variable that holds its key is not set.
        """
        if self.options.url:
            return await self._found()
        try:
            return await self._started()
        except _PortTaken:  # somebody was faster; a second time it is worth telling
            if self.spec.part is not None:  # the other parts have met this one
                raise
            return await self._started()

    async def healthy(self, api: Api) -> bool:
        """Ask once; False also for no answer, or a late one."""
        try:
            async with asyncio.timeout(PROBE_S):
                return await self.dialect.healthy(api)
        except (ServerGone, ServerAnswer, TimeoutError):
            return False

    async def _started(self) -> Up:
        port, key = free_port(), secrets.token_urlsafe(32)
        launch = Launch(spec=self.spec, python=self.python, port=port, key=key, folder=self.folder, traces=self.traces)
        process = ServerProcess(
            self.dialect.name,
            self.dialect.command(launch),
            private=self.traces is not None,
            folder=self.folder if self.spec.part is not None else None,
        )
        up = Up(api=Api(f"http://127.0.0.1:{port}", key), process=process)
        try:
            await self._until_healthy(up.api, process)
        except BaseException:
            await up.drop(0.0)
            raise
        return up

    async def _until_healthy(self, api: Api, process: ServerProcess) -> None:
        deadline = self.clock.now() + self.options.start_timeout_s
        while not await self.healthy(api):
            code = process.exit_code()
            if code is not None:
                await process.end()
                raise self._ended(code, process)
            if self.clock.now() > deadline:
                raise WorkerError(
                    f"the {self.dialect.name} server did not serve within {self.options.start_timeout_s:g} s",
                    why=process.tail(),
                    fix="raise rollout.options.start_timeout_s, and scheduler.start_timeout_s with it",
                )
            await self.clock.sleep(LOOK_S)

    def _ended(self, code: int, process: ServerProcess) -> ModelError | WorkerError:
        tail = process.tail(200)
        kind = _PortTaken if _PORT_TAKEN in tail.lower() else WorkerError
        return (ModelError if self.dialect.blames_model(tail) else kind)(
            f"the {self.dialect.name} server ended with code {code} before it served",
            why=process.tail(),
            fix="read its output in the worker's log",
        )

    async def _found(self) -> Up:
        variable = self.options.key_env
        key = os.environ.get(variable, "") if variable else ""
        if variable and not key:
            raise PlanError(
                f"environment variable {variable} is not set",
                why="rollout.options.key_env names it as the key of the server",
                fix=f"export {variable}=...",
            )
        api = Api(self.options.url, key)
        if not await self.healthy(api):
            await api.close()
            raise WorkerError(
                f"no healthy {self.dialect.name} server at {self.options.url}",
                why="it does not answer, or not with success",
                fix="check rollout.options.url and key_env",
            )
        return Up(api=api, process=None)


class _PortTaken(WorkerError):
    """Between choosing a port and listening on it, somebody else took it."""
