"""Hosts on one machine: network namespaces with addresses of their own, joined by a switch in another namespace.

    with Network(3, mbit_per_s=200) as network:
        subprocess.run([*network.inside(1), "ip", "addr"])

No packet leaves them, and the machine's own interfaces stay as they are.

Knows: `ip`, `tc` and how a link is limited. Needs root.
Does not know: what runs on the hosts. Links with faults are those of `faulty_switch`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack, suppress
from types import TracebackType

_BURST, _QUEUE = "128kb", "100ms"


class Unavailable(Exception):
    """This machine cannot simulate hosts; says why."""


class Network:
    """Hosts 0..n-1 at 10.232.0.1, 10.232.0.2, .. A context manager.

    Args:
        num_hosts: how many.
        mbit_per_s: what each link lets through, in each direction; None for no limit.
        wired: whether to connect them; else somebody else does (`FaultySwitch`).

    Raises:
        Unavailable: on entering; there is no `ip`, or no right to use it.
    """

    def __init__(self, num_hosts: int, *, mbit_per_s: float | None = None, wired: bool = True) -> None:
        self.switch = f"areal-{os.getpid()}-switch"
        self.names = [f"areal-{os.getpid()}-host{number}" for number in range(num_hosts)]
        self.addresses = [f"10.232.0.{number + 1}" for number in range(num_hosts)]
        self._rate, self._wired = mbit_per_s, wired
        self._made = ExitStack()

    def __enter__(self) -> Network:
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise Unavailable("there is no `ip` and `tc` (iproute2) to make network namespaces with")
        try:
            with self._made:
                for name in (self.switch, *self.names):
                    ip("netns", "add", name)
                    self._made.callback(_remove, name)
                if self._wired:
                    self._connect()
                self._made = self._made.pop_all()
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"network namespaces cannot be made here: {error.stderr.strip()}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._made.close()

    def inside(self, host: int) -> list[str]:
        """Return what runs a command on a host: the words before it."""
        return ["ip", "netns", "exec", self.names[host]]

    def address(self, host: int, device: str) -> None:
        """Give a host its address on a device that was moved into it."""
        name = self.names[host]
        ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", device)
        for interface in ("lo", device):
            ip("-n", name, "link", "set", interface, "up")

    def _connect(self) -> None:
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch)
            ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")
            self.address(host, "cable")
            if self._rate is not None:
                limit = ("root", "tbf", "rate", f"{self._rate}mbit", "burst", _BURST, "latency", _QUEUE)
                _run("tc", "-n", name, "qdisc", "add", "dev", "cable", *limit)
                _run("tc", "-n", self.switch, "qdisc", "add", "dev", port, *limit)


def ip(*words: str) -> None:
    """Run `ip`."""
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _remove(name: str) -> None:
    with suppress(subprocess.CalledProcessError):
        ip("netns", "delete", name)
