"""One worker process as the controller sees it: born, answering, ended, and the last lines it wrote.

Knows: how the process is started, asked to end, and killed with all it started.
Does not know: calls (`rpc`), or the other workers of a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from areal_local.scheduler.bootstrap import Bootstrap, to_line

LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 32_768
_KILL_TIMEOUT_S = 5.0


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a log; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-num_lines:])


class WorkerProcess:
    """Starts at construction, in a session and process group of its own, with its output in `log_path`.

    `ready_line` is read from a pipe the process writes to when it listens. Its standard
    input stays open until `end`, or until the controller is no more: that has the worker's watchdog kill the group.
    """

    def __init__(self, command: Sequence[str], bootstrap: Bootstrap, env: Mapping[str, str], log_path: Path) -> None:
        self.log_path = log_path
        self._gone = False
        self._ready, theirs = os.pipe()
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, "-P", "-m", "areal_local.scheduler.worker_main"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(env),
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(theirs)
        self._introduce(attrs.evolve(bootstrap, ready_descriptor=theirs))

    @property
    def pid(self) -> int:
        """Return the process id, which is also that of its group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return None while it runs; afterwards its exit code, or minus the signal that killed it. Never blocks."""
        return self._process.poll()

    async def ready_line(self) -> bytes:
        """Return the line the process answers with once it listens; what it ends without is empty."""
        loop = asyncio.get_running_loop()
        received, done = bytearray(), loop.create_future()

        def on_readable() -> None:
            part = os.read(self._ready, 4096)
            received.extend(part)
            if (not part or received.endswith(b"\n")) and not done.done():
                done.set_result(None)

        loop.add_reader(self._ready, on_readable)
        try:
            await done
        finally:
            loop.remove_reader(self._ready)
        return bytes(received)

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of its log."""
        return log_tail(self.log_path)

    async def end(self, patience_s: float) -> None:
        """Ask it to end, kill its whole group after `patience_s`, and wait until it is gone. Idempotent.

        Whoever waits no longer (a second Ctrl-C) has the group killed at once.
        """
        if self._gone:
            return
        try:
            if self.exit_code() is None:
                self._process.terminate()
                await self.exited(patience_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._gone = await self.exited(_KILL_TIMEOUT_S)
        self.let_go()

    async def exited(self, timeout_s: float) -> bool:
        """Wait until the process is gone; tell whether it is."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, timeout_s)
        return self.exit_code() is not None

    def _introduce(self, bootstrap: Bootstrap) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; `ready_line` will tell
            os.write(self._process.stdin.fileno(), to_line(bootstrap))

    def let_go(self) -> None:
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
