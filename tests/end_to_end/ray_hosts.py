"""A Ray cluster whose machines are network namespaces: each has an address of its own and can be lost whole.

Knows: `ray start`, and how a machine is killed with everything on it.
Does not know: what runs there.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import psutil
from attrs import field, frozen
from tests.benches.network import Network

from areal_core.worker.rendezvous import free_port

PORT = 6379
_MAIN = "from ray.scripts.scripts import main; main()"
_SAYING = "from ray._private import utils; utils.compute_version_info = lambda: {says!r}; "
RAY = (sys.executable, "-c", _MAIN)
_STORE_BYTES = str(128 << 20)
_PATIENCE_S = 90.0
_ALIKE: Mapping[int, Sequence[str]] = MappingProxyType({})


@frozen
class RayHosts:
    """A cluster; machine 0 is its head, which holds no worker."""

    network: Network
    environ: Mapping[str, str] = field(repr=False)

    @property
    def address(self) -> str:
        """Return where it is joined."""
        return f"{self.network.addresses[0]}:{PORT}"

    def inside(self, number: int) -> list[str]:
        """Return what runs a command on a machine, as a member of the cluster."""
        given = [f"{name}={value}" for name, value in self.environ.items()]
        return [*self.network.inside(number), "env", *given]

    def processes(self, number: int) -> list[int]:
        """Return the ids of all processes on a machine."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.network.names[number]], check=True, capture_output=True, text=True
        )
        return [int(word) for word in listed.stdout.split()]

    def of(self, pid: int) -> int:
        """Return the machine a process is on."""
        return next(number for number in range(len(self.network.names)) if pid in self.processes(number))

    def lose(self, number: int) -> None:
        """Kill a machine: its raylet and everything on it."""
        for pid in self.processes(number):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_hosts(
    network: Network, folder: Path, num_cpus: int = 1, unlike: Mapping[int, Sequence[str]] = _ALIKE
) -> Iterator[RayHosts]:
    """Start Ray on every machine of a network.

    Args:
        num_cpus: processors of all but the head.
        unlike: number of a machine -> the words that start Ray on it, where it is unlike the others.
    """
    environ = _environ(folder)
    hosts = RayHosts(network, environ)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, address in enumerate(network.addresses):
            head = ("--head", "--port", str(PORT), "--include-dashboard", "false")
            where = ("--address", hosts.address) if number else head
            words = [*RAY, "start", *where, "--node-ip-address", address, "--num-cpus", str(num_cpus if number else 0)]
            words += ["--object-store-memory", _STORE_BYTES, "--block"]
            path = folder / f"host-{number}.log"
            with path.open("wb") as log:
                quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
                started.append(subprocess.Popen([*hosts.inside(number), *unlike.get(number, ()), *words], **quiet))  # type: ignore[call-overload]
            _await_start(path)
        yield hosts
    finally:
        for number in range(len(network.names)):
            hosts.lose(number)
        for process in started:
            process.wait()


def _await_start(log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while "Ray runtime started" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)  # between looks at another process's log


@contextmanager
def one_machine(says: tuple[str, str] | None = None) -> Iterator[tuple[list[str], str]]:
    """Start a cluster of this machine, on loopback; yield its variables, as `env` takes them, and its dashboard.

    Args:
        says: the versions of Ray and Python that it says it has; None for the truth.
    """
    start = [*RAY[:2], _SAYING.format(says=says) + _MAIN] if says else [*RAY]
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        environ = [f"{name}={value}" for name, value in _environ(Path(folder)).items()]
        environ.append("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0")  # loopback only
        ports = (free_port("127.0.0.1"), free_port("127.0.0.1"))
        words = [*start, "start", "--head", "--port", str(ports[0]), "--dashboard-port", str(ports[1])]
        words += ["--num-cpus", "8"]
        words += ["--min-worker-port", "33000", "--max-worker-port", "39999"]  # where `free_port` finds none
        log = Path(folder) / "head.log"
        with log.open("wb") as out:
            head = subprocess.Popen(
                ["env", *environ, *words, "--object-store-memory", _STORE_BYTES, "--block"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            _await_start(log)
            yield [*environ, f"RAY_ADDRESS=127.0.0.1:{ports[0]}"], f"http://127.0.0.1:{ports[1]}"
        finally:
            family = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait()


def _environ(folder: Path) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
    }
