"""One process of ours, its output read up to a bound, ended in time: what every provider with a command line needs.

Knows: pipes, deadlines, process groups.
Does not know: what runs, or what its exit code means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from areal_agentic.sandbox import Ending, Ran, SandboxError

STARTED = b"."
"""The first byte of standard output: all is made that the command runs in, and it comes next."""
ANNOUNCED = f'printf {STARTED.decode()} && unset PWD OLDPWD SHLVL; exec "$@"'
"""Shell text that says so and goes on to the command, which sees no variables of the shell."""
START_S = 30.0
_CHUNK = 65_536
_PAUSE_S = 0.01
"""Between two reads of output that is thrown away: who writes without end is slowed, and costs the reader little."""
_LAST_OUTPUT_S = 5.0
_SIGNALS = range(129, 193)
"""Exit codes that tell of a signal, as shells have it."""

Watch = Callable[[int], Awaitable[Ending]]
"""Given the process id; returns once a limit is exceeded, with the ending that this is. Cancelled otherwise."""


@frozen(kw_only=True)
class Outcome:
    """How a process ended. `stopped` is why it was killed from here, None if it ended by itself.

    Example: Outcome(code=0, stdout=b"42", stderr=b"", truncated=False, seconds=0.02, stopped=None)
    """

    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    seconds: float
    stopped: Ending | None

    def ran(self) -> Ran:
        """Return it as the contract tells it; a code that shells give for a signal is one."""
        killed = self.code < 0 or self.code in _SIGNALS
        ending = self.stopped or (Ending.KILLED if killed else Ending.EXITED)
        return Ran(
            ending=ending,
            exit_code=self.code if ending == Ending.EXITED else None,
            stdout=self.stdout.decode(errors="replace"),
            stderr=self.stderr.decode(errors="replace"),
            truncated=self.truncated,
            seconds=self.seconds,
        )


@define
class _Output:
    """The first bytes of a stream."""

    bound: int
    begun: asyncio.Event = field(factory=asyncio.Event)
    """The first byte was read, or there is none."""
    kept: bytearray = field(factory=bytearray)
    truncated: bool = False

    async def read(self, stream: asyncio.StreamReader) -> None:
        try:
            while chunk := await stream.read(_CHUNK):
                self.begun.set()
                room = self.bound - len(self.kept)
                self.kept += chunk[:room]
                if len(chunk) > room:
                    self.truncated = True
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self.begun.set()


async def execute(
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    max_output: int,
    timeout_s: float,
    watch: Watch | None = None,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> Outcome:
    """Run a command that begins with `ANNOUNCED`, and kill its process group once its time is over or `watch` says so.

    Its time begins when it said `STARTED`, which is no part of the outcome. `max_output` bounds standard output and
    standard error each. Without `environment` and `folder` it has this process's. Nothing of the group is left when
    this returns or raises; who left the group is the caller's affair.

    Raises:
        SandboxError: it did not start; what happened before it said so is no doing of the command.
    """
    process = await _begin(_started(command, descriptors, environment, folder))
    assert process.stdout is not None and process.stderr is not None
    outputs = _Output(max_output + len(STARTED)), _Output(max_output)
    streams = [
        asyncio.ensure_future(output.read(stream))
        for output, stream in zip(outputs, (process.stdout, process.stderr), strict=True)
    ]
    tasks = [asyncio.ensure_future(_feed(process, stdin)), *streams]
    watched = asyncio.ensure_future(watch(process.pid)) if watch is not None else None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await outputs[0].begun.wait()
        began = time.perf_counter()
        stopped = await _end(process, timeout_s if outputs[0].kept else _LAST_OUTPUT_S, watched)
        seconds = time.perf_counter() - began
        kill_group(process.pid)
        code = await _gone(process)
        await asyncio.wait(streams, timeout=_LAST_OUTPUT_S)
    finally:
        kill_group(process.pid)
        await _settle([*tasks, *([] if watched is None else [watched])], process)
    if not outputs[0].kept.startswith(STARTED):
        why = outputs[1].kept.decode(errors="replace").strip()
        raise SandboxError("a command in a sandbox did not start", why=why or f"it ended with exit code {code}",
                           fix="areal doctor tells whether sandboxes can be had here")  # fmt: skip
    return Outcome(
        code=code,
        stdout=bytes(outputs[0].kept[len(STARTED) :]),
        stderr=bytes(outputs[1].kept),
        truncated=any(output.truncated for output in outputs),
        seconds=seconds,
        stopped=stopped,
    )


def kill_group(group: int) -> None:
    """Kill a process group; fine if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _begin(starting: Coroutine[Any, Any, asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """Start a process. If the caller is cancelled meanwhile, its whole group is killed: asyncio would kill it alone."""
    making = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.shield(_discarded(making))
        raise


async def _discarded(making: asyncio.Future[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(SandboxError):
        process = await making
        kill_group(process.pid)
        await _gone(process)
        process._transport.close()  # type: ignore[attr-defined]  # as in `_settle`


async def _started(
    command: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str] | None, folder: str | None
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=descriptors,
            env=environment,
            cwd=folder,
        )
    except (OSError, ValueError) as error:
        raise SandboxError(
            "a command in a sandbox cannot be started",
            why=str(error),
            fix="write what is long, or no plain text, to a file of the sandbox, and name that in the command",
        ) from error


async def _end(
    process: asyncio.subprocess.Process, timeout_s: float, watched: asyncio.Future[Ending] | None
) -> Ending | None:
    """Wait for the process, its deadline, or a limit; return why it has to be killed, None if it ended."""
    ended = asyncio.ensure_future(_gone(process))
    waiting: set[asyncio.Future[Any]] = {ended} if watched is None else {ended, watched}  # Any: of two kinds
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return None
        return watched.result() if watched is not None and watched.done() else Ending.TIMEOUT
    finally:
        ended.cancel()


async def _feed(process: asyncio.subprocess.Process, stdin: bytes) -> None:
    """Write standard input and close it; nobody has to read it."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()


async def _settle(tasks: Sequence[asyncio.Future[Any]], process: asyncio.subprocess.Process) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _gone(process)
    process._transport.close()  # type: ignore[attr-defined]  # its pipes may still be held by whoever left its group


async def _gone(process: asyncio.subprocess.Process) -> int:
    """Wait until a process is gone, and return its exit code.

    `process.wait()` waits for its pipes, too, which whoever left its group may hold for as long as it likes: so now and
    then the exit code is looked at, of which alone asyncio tells nobody.
    """
    ended = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({ended}, timeout=_PAUSE_S)
    finally:
        ended.cancel()
    return process.returncode
