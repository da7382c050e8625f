"""What a server's own profiler saw of single steps, beside the traces of the run's other workers.

    class MyProfiler:                     # a ServerProfiler
        rank = re.compile(r"_rank(\\d+)")
        advice = "start it with --profile"
        async def start(self, api, folder): await api.post("/start_profile", {"folder": str(folder)})
        async def stop(self, api, folder): await api.post("/stop_profile")
    super().__init__(MyDialect(), options, profiler=MyProfiler())

Knows: which steps were asked for, when a record begins and ends, how its files get into the run folder.
Does not know: routes (`ServerProfiler`), what is recorded. A record that fails is told in the worker's log, and ends
no run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
from pathlib import Path
from typing import Protocol

from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.server_lifecycle import ServerLifecycle
from areal_torch.profile import Asked

logger = logging.getLogger("areal.profile")

TRACED_PASSES = 50
"""Forward passes in one trace: a server that can is told to end its record there.

It computes nothing while it writes. 200 passes of two layers took SGLang 7 s and vLLM, which adds a table on a CPU,
19 s on two busy cores; with the layers of a real model no pause or update would wait for that.
"""


class ServerProfiler(Protocol):
    """How a server's profiler is driven. Raises `ServerAnswer` and `ServerGone` like a `Dialect`.

    Both calls are made between two versions of the weights, and one that takes longer than a call to the server may
    (`CALL_TIMEOUT_S`) costs the trace: a server that writes for minutes must not cost the update.
    """

    @property
    def rank(self) -> re.Pattern[str]:
        """Return what finds the rank in the name of a file that the server wrote, as group 1."""

    @property
    def advice(self) -> str:
        """Return what to do about a server that cannot be traced, or whose files are not found."""

    async def start(self, api: Api, folder: Path) -> None:
        """Have every rank record from now on; `folder` is the one of `Launch.traces`."""

    async def stop(self, api: Api, folder: Path) -> None:
        """Return once every rank wrote `*.json.gz` to `folder`; also after ranks ended the record by themselves."""


class ServedTraces:
    """The traces of one engine's server, if areal started it. One event loop.

    The record of a step begins when the version before it serves, with the first request if nothing served earlier,
    and ends when the next one is to: its files are there before the step is over.
    """

    def __init__(self, profiler: ServerProfiler | None, asked: Asked, server: ServerLifecycle, *, name: str) -> None:
        self._profiler = profiler
        self._asked = asked
        self._server = server
        self._name = name
        self._left = set(asked.steps)
        self._alone = asyncio.Lock()
        self._recorded: tuple[int, Api] | None = None

    def wants(self, step: int) -> bool:
        """Tell whether a step was asked for, and its record not begun."""
        return step in self._left

    async def begin(self, step: int) -> None:
        """Begin the record of a step, if it is wanted; a second time nothing happens."""
        if step not in self._left:
            return
        self._left.remove(step)
        async with self._alone:
            api, folder, profiler = self._server.serving, self._server.traces, self._profiler
            if profiler is None:
                self._warn(step, f"the {self._name} plugin knows no profiler of its server")
            elif folder is None:
                why = f"the {self._name} server is the one of rollout.options.url"
                self._warn(step, why, "whoever runs it can trace it with its own profiler")
            elif api is None:
                self._warn(step, f"the {self._name} server was being started again")
            else:
                self._recorded = step, api
                await asyncio.to_thread(_empty, folder)  # of what came after a step for which nobody waited any longer
                try:
                    await profiler.start(api, folder)
                except (ServerAnswer, ServerGone) as error:
                    self._recorded = None
                    self._warn(step, f"the {self._name} server does not start its profiler: {error}", profiler.advice)

    async def end(self) -> None:
        """End what is recorded and put its files where they belong, whole or not at all. Idempotent."""
        async with self._alone:
            recorded, self._recorded = self._recorded, None
            folder, profiler = self._server.traces, self._profiler
            if recorded is not None and folder is not None and profiler is not None:
                await self._end(*recorded, folder, profiler)

    async def _end(self, step: int, api: Api, folder: Path, profiler: ServerProfiler) -> None:
        try:
            await profiler.stop(api, folder)
            if not await asyncio.to_thread(self._collect, step, folder, profiler.rank):
                self._warn(step, f"the {self._name} server wrote no file to {folder}", profiler.advice)
        except (ServerAnswer, ServerGone) as error:
            self._warn(step, f"the {self._name} server did not end its record: {error}", profiler.advice)
        except OSError as error:
            self._warn(step, str(error))
        finally:
            await asyncio.to_thread(_empty, folder)

    def _collect(self, step: int, folder: Path, rank: re.Pattern[str]) -> int:
        """Move what the server wrote into the run folder; return how many files."""
        found = [(int(match[1]), file) for file in folder.glob("*.json.gz") if (match := rank.search(file.name))]
        for number, file in found:
            self._asked.make_folder(step)
            target = self._asked.file(step, number)
            part = target.with_name(f".{target.name}.part")
            try:
                shutil.copyfile(file, part)
                part.chmod(0o600)
                part.rename(target)
            finally:
                part.unlink(missing_ok=True)
        return len(found)

    def _warn(self, step: int, why: str, fix: str = "") -> None:
        logger.warning("no trace of step %d: %s%s", step, why, fix and f"; {fix}")


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # what is missing is told when the next file is
        folder.mkdir(mode=0o700)
