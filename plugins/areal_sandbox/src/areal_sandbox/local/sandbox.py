"""One sandbox of this machine: a room, and bubblewrap for each command in it.

Knows: the order of things around a command, and what its end means.
Does not know: what a command sees (`view`), or who counts what it takes (`usage`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from attrs import define, evolve, field

from areal_agentic.sandbox import Ending, Ran, SandboxError
from areal_sandbox.execution import Outcome, execute, kill_group
from areal_sandbox.files import read_file, write_file
from areal_sandbox.local.filter import seccomp_filter
from areal_sandbox.local.room import Room, outside
from areal_sandbox.local.usage import watch_group, watch_processes
from areal_sandbox.local.view import View, bounded

_NOTHING: Mapping[str, str] = MappingProxyType({})


@define(eq=False)
class LocalSandbox:
    """A `Sandbox` of the provider `local`."""

    _room: Room = field(alias="room")
    _view: View = field(alias="view")
    _ended: Callable[[LocalSandbox], object] = field(alias="ended")
    """Told once it is closed."""
    _turn: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    _running: int | None = field(default=None, init=False)
    """Process id of what enters the room now."""
    _closed: bool = field(default=False, init=False)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] = _NOTHING,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command in the working folder, as the contract says."""
        limits = self._room.limits
        seconds = limits.timeout_s if timeout_s is None else min(timeout_s, limits.timeout_s)
        return (await self._execute(command, stdin, limits.output_bytes, environment, seconds)).ran()

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, relative to the working folder."""
        await write_file(self._tended, path, data)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a file's first bytes."""
        return await read_file(self._tended, path, max_bytes)

    async def close(self) -> None:
        """Kill and remove everything. Idempotent; also where a command is running."""
        self._closed = True
        if self._running is not None:
            kill_group(self._running)
        async with self._turn:
            await self._room.end()
        self._ended(self)

    async def _tended(self, command: list[str], stdin: bytes, max_output: int) -> Outcome:
        return await self._execute(command, stdin, max_output, _NOTHING, self._room.limits.timeout_s)

    async def _execute(
        self, command: Sequence[str], stdin: bytes, max_output: int, environment: Mapping[str, str], timeout_s: float
    ) -> Outcome:
        async with self._turn:
            self._require_open()
            group = self._room.group
            kills = 0 if group is None else group.kills()
            try:
                with _filter() as descriptor:
                    outcome = await execute(
                        [
                            *self._room.enter(),
                            *self._view.arguments(self._room.limits, environment, descriptor),
                            *bounded(self._room.limits, grouped=group is not None),
                            *command,
                        ],
                        stdin=stdin, max_output=max_output, timeout_s=timeout_s,
                        watch=lambda pid: self._watch(pid, kills),
                        descriptors=[] if descriptor is None else [descriptor],
                        environment=outside(),
                    )  # fmt: skip
            except SandboxError:
                self._require_open()  # it did not start, since it was closed meanwhile
                raise
            finally:
                self._running = None
                if not await asyncio.shield(self._room.empty()):
                    await self._room.end()
            self._require_open()
            killed = group is not None and group.kills() > kills
            return evolve(outcome, stopped=Ending.MEMORY) if killed else outcome

    async def _watch(self, pid: int, kills: int) -> Ending:
        self._running = pid
        if self._closed:
            return Ending.KILLED
        if self._room.group is not None:
            return await watch_group(self._room.group, kills)
        return await watch_processes(self._room.limits, pid, self._room.pid)

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed", fix="open another one")
        if not self._room.alive:
            raise SandboxError(
                "the sandbox is gone", why="the process that holds it was killed", fix="open another one"
            )


@contextmanager
def _filter() -> Iterator[int | None]:
    """Give the seccomp filter of this machine as a descriptor to read it from, None without one."""
    program = seccomp_filter()
    if not program:
        yield None
        return
    ours, theirs = os.pipe()
    try:
        os.write(theirs, program)
        os.close(theirs)
        yield ours
    finally:
        os.close(ours)
