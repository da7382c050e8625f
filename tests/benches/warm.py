"""A process that has imported what every `areal` command imports, and forks for each command a test runs.

A fresh interpreter spends most of its time on those imports, and tests start hundreds of commands.
Knows: how a command gets its words, environment, folder and streams, and how it ends.
Does not know: which commands there are; nothing of a test's own is imported here before the fork.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

LIMIT_S = 250.0
"""How long a command may take on a machine that has much else to do."""
_PRELOADED = (
    *("cyclopts", "areal_core.cli.main", "areal_core.config.load", "areal_core.config.plan"),
    *("areal_core.plugins.findings", "areal_core.plugins.hooks", "areal_core.plugins.registry"),
)
"""Nothing that loads an engine, and nothing that reads what is installed."""


class WarmProcess:
    """Started once by a process of pytest, ended with it."""

    def __init__(self) -> None:
        """Start it; it imports while the first command is on its way."""
        self._line, theirs = socket.socketpair()
        self._line.settimeout(LIMIT_S)
        # The folder of this file would be on its path: it has a module of every bench.
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)

    def run(self, words: Sequence[str], environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run `areal WORDS...` and return what it printed, as `subprocess.run` does."""
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request.write(json.dumps([list(words), dict(environ), str(folder)]).encode())
            request.flush()
            socket.send_fds(self._line, [b"."], [request.fileno(), out.fileno(), err.fileno()])
            child = self._hear()
            try:
                code = self._hear()
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                raise
            printed = []
            for stream in (out, err):
                stream.seek(0)
                printed.append(stream.read().decode().replace("\r\n", "\n"))
        return subprocess.CompletedProcess(["areal", *words], code, *printed)

    def close(self) -> None:
        """Let it end."""
        self._line.close()
        self._process.wait()

    def _hear(self) -> int:
        """Return the next number it says."""
        if not (said := self._line.recv(8)):
            raise RuntimeError("the warm process has ended")
        return int.from_bytes(said, "big", signed=True)


@cache
def warm_process() -> WarmProcess:
    """Return that of this process."""
    made = WarmProcess()
    atexit.register(made.close)
    return made


def serve(line: socket.socket) -> None:
    """Fork for every request until nobody asks any more."""
    for name in _PRELOADED:
        importlib.import_module(name)
    while True:
        begin, streams, _, _ = socket.recv_fds(line, 1, 3)
        if not begin:
            return
        if not (child := os.fork()):
            line.close()
            become(*streams)
        for stream in streams:
            os.close(stream)
        line.sendall(child.to_bytes(8, "big", signed=True))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        line.sendall(code.to_bytes(8, "big", signed=True))


def become(request: int, out: int, err: int) -> None:
    """Be the process of `python -m areal_core.cli.main WORDS...` in its folder and environment; never return."""
    code = 1
    try:
        os.lseek(request, 0, os.SEEK_SET)
        with open(request, "rb") as file:
            words, environ, folder = json.load(file)
        for stream, place in ((out, 1), (err, 2)):
            os.dup2(stream, place)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        sys.path[:0] = [folder, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
        importlib.invalidate_caches()
        frame = sys.modules["areal_core.cli.main"]
        sys.argv = [str(frame.__file__), *words]
        code = frame.main()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as here:
        serve(here)
