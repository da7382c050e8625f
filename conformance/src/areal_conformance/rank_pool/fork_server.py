"""The parent's end of the fork server: one process that has torch in memory and forks ranks on demand.

Knows: how it is started, asked and ended; one per process and hash seed, ended at exit.
Does not know: what ranks do.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from areal_conformance.outcome import HarnessError
from areal_conformance.rank_pool import wire

START_S = 180.0
"""Importing torch from a cold disk."""
HASH_SEEDS = ("1", "8")
"""Under which names of columns, axes and layers come out of a set in another order; the first is everybody's."""


@frozen
class Child:
    """One rank's process: its id, the socket that reaches it, and where its output goes."""

    pid: int
    connection: socket.socket
    log: Path


class ForkServer:
    """Forks processes that have imported torch already, and its hash seed. The first fork waits for the import."""

    def __init__(self, hash_seed: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="areal-conformance-ranks-"))
        self._count = 0
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._log = self.folder / "fork-server.log"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "PYTHONPATH": path}
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment["PYTHONHASHSEED"] = hash_seed
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "areal_conformance.ranks.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._socket.settimeout(START_S)
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether it can fork."""
        return self._process.poll() is None

    def fork(self, warm: str = "") -> Child:
        """Start one rank; `warm` is a `module:function` called before the fork, once, for what it imports."""
        with self._lock:
            if not self._ready:
                self._ask(None)
                self._ready = True
            self._count += 1
            log = self.folder / f"rank-{self._count:04d}.log"
            ours, theirs = socket.socketpair()
            with theirs:
                handed = array.array("i", [theirs.fileno()])
                self._socket.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
                answer = self._ask({"log": str(log), "warm": warm})
            return Child(pid=answer["pid"], connection=ours, log=log)

    def end(self, children: Iterable[Child]) -> None:
        """Kill ranks and wait until they are gone. Idempotent."""
        with self._lock:
            mine = list(children)
            for child in mine:
                child.connection.close()
            if self.alive:
                with contextlib.suppress(OSError):
                    self._socket.sendall(b"k")
                self._ask({"pids": [child.pid for child in mine]})

    def close(self) -> None:
        """End it, and with it every rank. Idempotent."""
        self._socket.close()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for file in self.folder.glob("*.log"):
            file.unlink()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _ask(self, message: dict[str, object] | None) -> dict[str, int]:
        try:
            if message is not None:
                wire.send(self._socket, message)
            answer: dict[str, int] = wire.receive(self._socket)
        except wire.Gone as error:
            raise HarnessError(f"the process that forks ranks is gone: {error}\n{tail(self._log)}") from error
        return answer


_servers: dict[str, ForkServer] = {}  # kept for the process: importing torch anew for every target would cost seconds
_making = threading.Lock()


def fork_server(hash_seed: str = HASH_SEEDS[0]) -> ForkServer:
    """Return this process's fork server of that hash seed; starts it when first needed, or when it has died.

    Whoever will need it can ask early: it imports what ranks need while others work.
    """
    with _making:
        server = _servers.get(hash_seed)
        if server is None or not server.alive:
            if server is not None:
                server.close()
            elif not _servers:
                atexit.register(_close)
            server = _servers[hash_seed] = ForkServer(hash_seed)
        return server


def _close() -> None:
    while _servers:
        _servers.popitem()[1].close()


def tail(log: Path, characters: int = 1500) -> str:
    """Return the end of a log file; nothing if there is none."""
    try:
        return log.read_text(errors="replace")[-characters:].strip()
    except OSError:
        return ""
