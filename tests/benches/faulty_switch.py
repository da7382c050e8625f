"""A switch in user space between simulated hosts, whose links delay, lose and cut what goes through them.

    with Network(3, wired=False) as network, FaultySwitch(network) as switch:
        switch.set(delay_s=0.05)
        switch.cut([(1, 2), (2, 1)], after_bytes=1_000_000)

It needs /dev/net/tun and nothing else of the kernel, which may lack `netem`.

Knows: Ethernet frames, and what becomes of them on each link.
Does not know: what is in them. Drops are drawn from a fixed seed, in the order in which frames come.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.benches.network import Network, Unavailable, ip

_TUNSETIFF, _TAP, _NO_PACKET_INFO = 0x400454CA, 0x0002, 0x1000
_FRAME = 65536
_QUEUE = "20000"
"""Frames a host may have on its way to this process, which is busy at times: what is lost shall be lost on purpose."""
_AT_ONCE = 32
"""Frames taken from one port before the next one has its turn."""
Link = tuple[int, int]
"""From one host to another."""


class FaultySwitch:
    """The test's end: a process in the switch's namespace, told by lines of json. A context manager."""

    def __init__(self, network: Network) -> None:
        self._network = network
        words = [sys.executable, "-m", __name__, str(len(network.names))]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", network.switch, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )

    def __enter__(self) -> FaultySwitch:
        try:
            self._hear()
            for host, name in enumerate(self._network.names):
                wire = f"wire{host}"
                ip("-n", self._network.switch, "link", "set", wire, "txqueuelen", _QUEUE, "netns", name)
                self._network.address(host, wire)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def set(self, *, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """Have every link delay each frame by so many seconds, and lose this share of them."""
        self._tell(delay_s=delay_s, loss=loss)

    def cut(self, links: Iterable[Link], *, after_bytes: int = 0) -> None:
        """Let nothing more through on these links, once so much has gone over the first of them; tell nobody."""
        self._tell(cut=list(links), after_bytes=after_bytes)

    def mend(self) -> None:
        """Let everything through on every link."""
        self._tell(mend=True)

    def is_cut(self) -> bool:
        """Tell whether a cut has happened."""
        return bool(self._tell(ask=True)["cut"])

    def _tell(self, **message: Any) -> Any:  # Any: json
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        return self._hear()

    def _hear(self) -> Any:  # Any: json
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("this machine has no /dev/net/tun, or no right to use it")
        return json.loads(line)


class _Switch:
    """The process's end."""

    def __init__(self, num_ports: int) -> None:
        self._ports = [_tap(f"wire{number}") for number in range(num_ports)]
        self._homes: dict[bytes, int] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._random = random.Random(1)
        self._delay_s, self._loss = 0.0, 0.0
        self._gone: set[Link] = set()
        self._planned: tuple[list[Link], int] | None = None

    def run(self) -> None:
        """Switch frames until the input ends."""
        with selectors.DefaultSelector() as ready:
            for number, port in enumerate(self._ports):
                ready.register(port, selectors.EVENT_READ, number)
            ready.register(sys.stdin, selectors.EVENT_READ, None)
            print(json.dumps({"ready": True}), flush=True)
            while True:
                for key, _ in ready.select(self._patience()):
                    if key.data is not None:
                        self._take(key.data)
                    elif not self._obey(sys.stdin.readline()):
                        return
                self._deliver()

    def _obey(self, line: str) -> bool:
        if not line:
            return False
        told = json.loads(line)
        if "delay_s" in told:
            self._delay_s, self._loss = told["delay_s"], told["loss"]
        if "cut" in told:
            self._planned = [(a, b) for a, b in told["cut"]], told["after_bytes"]
            self._spend(self._planned[0][0], 0)
        if "mend" in told:
            self._gone, self._planned = set(), None
        print(json.dumps({"cut": bool(self._gone)}), flush=True)
        return True

    def _take(self, port: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(self._ports[port], _FRAME)
            except OSError:
                return
            self._homes[frame[6:12]] = port
            home = self._homes.get(frame[:6])
            for to in range(len(self._ports)) if home is None else (home,):
                if to != port:
                    self._carry(port, to, frame)

    def _carry(self, port: int, to: int, frame: bytes) -> None:
        self._spend((port, to), len(frame))
        if (port, to) not in self._gone and self._random.random() >= self._loss:
            heapq.heappush(self._under_way, (time.monotonic() + self._delay_s, next(self._order), to, frame))

    def _spend(self, link: Link, num_bytes: int) -> None:
        """Count what goes over the link that a planned cut waits for."""
        if self._planned is None or link != self._planned[0][0]:
            return
        links, left = self._planned
        self._planned = links, left - num_bytes
        if left <= num_bytes:
            self._gone, self._planned = self._gone | set(links), None

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, to, frame = heapq.heappop(self._under_way)
            try:
                os.write(self._ports[to], frame)
            except OSError:
                continue  # the host is not up yet, or gone

    def _patience(self) -> float | None:
        return max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None


def _tap(name: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PACKET_INFO))
    return port


if __name__ == "__main__":
    _Switch(int(sys.argv[1])).run()
