"""One server process: started, its words kept, its end sure.

Knows: a command, a watchdog around it (`areal_worker.watchdog`), the last lines it wrote.
Does not know: whether it serves (`launch` asks), or what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from areal_core.contract.errors import WorkerError
from areal_serving.dialect import Command
from areal_worker import watchdog

KEPT_LINES = 200
_WATCHDOG = Path(watchdog.__file__)
"""Run as a file, so that it needs nothing but an interpreter."""
_KILL_TIMEOUT_S = 10.0
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")
"""The trainer's environment must not reach into the engine's."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port nobody listens on at this moment; a server that loses the race for it fails to start."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Starts at construction. What it writes goes to this process's standard error, line by line, marked with `name`.

    Dies with this process, and so does everything it started. Belongs to the running event loop.

    Args:
        private: whether only its user may read the files it makes: torch writes a trace to the folder of temporary
            files first, readable to everybody.
        folder: where it runs; None for where this process does.

    Raises:
        WorkerError: the command cannot be run.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        environ: Mapping[str, str] | None = None,
        *,
        private: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        inherited = {k: v for k, v in (environ or os.environ).items() if k not in _PYTHON_VARIABLES}
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._loop = asyncio.get_running_loop()
        self._exited, self._silent = asyncio.Event(), asyncio.Event()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WATCHDOG), *command.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**inherited, **command.environ},
                cwd=folder,
                start_new_session=True,
                umask=0o077 if private else -1,
            )
        except OSError as error:
            raise WorkerError(f"{name} cannot be started", why=str(error), fix=f"check {command.argv[0]}") from error
        assert self._process.stdout is not None
        for work in (self._wait, lambda output=self._process.stdout: self._listen(output)):
            threading.Thread(target=work, name=f"areal-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Return the watchdog's process id; the server is its child."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return None while it runs, then its exit code. Never blocks."""
        return self._process.poll()

    def tail(self, lines: int = 20) -> str:
        """Return the last lines it wrote."""
        return "\n".join(list(self._lines)[-lines:])

    async def exited(self, timeout_s: float | None = None) -> bool:
        """Wait until it is gone and its last words are read; tell whether it is gone."""
        if not await _happened(self._exited, timeout_s):
            return False
        await _happened(self._silent, _KILL_TIMEOUT_S)
        return True

    async def end(self, patience_s: float = 5.0) -> None:
        """Ask it to end, kill it and all it started after `patience_s`, wait until it is gone. Idempotent."""
        if self.exit_code() is None and patience_s > 0:
            self._process.terminate()
            await self.exited(patience_s)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not await self.exited(_KILL_TIMEOUT_S):
            self._process.kill()
            await self.exited(_KILL_TIMEOUT_S)

    def _wait(self) -> None:
        self._process.wait()
        self._tell(self._exited)

    def _listen(self, output: IO[bytes]) -> None:
        try:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip()
                self._lines.append(text)
                with contextlib.suppress(OSError, ValueError):  # our own standard error may be closed
                    sys.stderr.write(f"[{self.name}] {text}\n")
        finally:
            output.close()
            self._tell(self._silent)

    def _tell(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(event.set)


async def _happened(event: asyncio.Event, timeout_s: float | None) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
