"""Seconds of one weight update for 1, 2, 4 and 8 receivers on hosts of their own, behind links of limited rate.

Each host is a network namespace; every link lets `--mbit` through in each direction. Counted is a whole transfer:
from `open` until every receiver has fingerprinted every tensor and all receipts agree. Needs root and iproute2.

    chain      each receiver passes on what it gets (`fan_out: auto`)
    broadcast  gloo's own tree (`fan_out: broadcast`)
    raw        the same bytes through one plain TCP connection between two of the hosts
    placed     half of the receivers on the trainer's host: all in the chain, against the better of what any mixture of
               transports could do, which cannot be faster than the chain to those elsewhere alone

Beside each stands what a model of it says, from the rate of the raw connection and the latency of the link.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import frame
from weight_peer import make_tensors, receive

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the repository
from tests.benches.network import Network, Unavailable

from areal_core.contract.weights import Offer, WeightTransport
from areal_core.weights.coverage import compare
from areal_core.weights.tensors import manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_local.transports.shm import ShmTransport
from areal_torch.bucketing import buckets
from areal_torch.collective.chain import PIECE_BYTES

LATENCY_S = 0.0005
"""Of one hop, roughly: a veth, a bridge, and waking the process behind it."""


def chain_s(num_bytes: int, bytes_per_s: float, num_receivers: int, *, piece: int = PIECE_BYTES) -> float:
    """Return how long a chain takes: all bytes over one link, and a piece more for every receiver on the way."""
    return num_bytes / bytes_per_s + (num_receivers - 1) * (piece / bytes_per_s + LATENCY_S)


def tree_s(num_bytes: int, bytes_per_s: float, num_receivers: int) -> float:
    """Return how long a binomial tree takes: rank 0 sends everything once for each of its branches."""
    return math.ceil(math.log2(num_receivers + 1)) * (num_bytes / bytes_per_s + LATENCY_S)


class Process:
    """This script as a process on a host, which answers one line of json for every line."""

    def __init__(self, prefix: Sequence[str], address: str, num_bytes: int) -> None:
        words = [*prefix, sys.executable, str(Path(__file__).resolve()), "--serve", address, str(num_bytes)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, **message: Any) -> None:  # Any: json
        """Send a line."""
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def hear(self) -> Any:  # Any: json
        """Wait for a line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Served:
    """What such a process does: it sends, receives, or moves raw bytes."""

    def __init__(self, address: str, num_bytes: int) -> None:
        self._address, self._num_bytes = address, num_bytes
        self._tensors = make_tensors(num_bytes)
        self._ends: dict[str, Any] = {"shm": ShmTransport()}  # Any: transports
        self._receiving: dict[str, WeightTransport] = {"collective": CollectiveTransport(), "shm": ShmTransport()}
        self._version = 0
        self._listening = socket.create_server((address, 0))

    def run(self) -> None:
        """Serve until the input ends."""
        say(port=self._listening.getsockname()[1])
        for line in sys.stdin:
            message = json.loads(line)
            say(**getattr(self, message.pop("do"))(**message))

    def send(self, fan_out: str, receivers: list[str]) -> dict[str, Any]:
        """Make one transfer; offers go out as a line before, receipts come in as lines."""
        self._version += 1
        if fan_out not in self._ends:
            config = CollectiveConfig(host=self._address, fan_out=fan_out)
            self._ends[fan_out] = CollectiveTransport(config)
        transport = self._ends[fan_out]
        offer = transport.open(self._version)
        if fan_out != "shm":
            say(offers=[attrs.asdict(own) for own in transport.expect(offer, receivers)])
        sink = transport.sink(offer)
        sink.begin(manifest_of(self._tensors.items(), version=self._version))
        for bucket in buckets(self._tensors.items(), sink.bucket_bytes):
            sink.write(bucket)
        sent = sink.finish()
        if fan_out == "shm":
            say(offers=[attrs.asdict(offer)] * len(receivers))
        for name in receivers:
            told = json.loads(sys.stdin.readline())
            compare(sent, attrs.evolve(sent, fingerprints=told["fingerprints"]), name)
        transport.release(offer)
        return {}

    def take(self, offer: dict[str, Any]) -> dict[str, Any]:
        """Receive one version."""
        receipt = receive(self._receiving[offer["transport"]], Offer(**offer), None)
        return {"fingerprints": dict(receipt.fingerprints)}

    def pour(self, address: str, port: int) -> dict[str, Any]:
        """Send raw bytes through one connection until the other side has them."""
        whole = memoryview(bytes(self._num_bytes))
        with socket.create_connection((address, port)) as line:
            line.sendall(whole)
            line.recv(1)
        return {}

    def drain(self) -> dict[str, Any]:
        """Take raw bytes."""
        line, _ = self._listening.accept()
        room, left = bytearray(1 << 20), self._num_bytes
        with line:
            while left:
                left -= line.recv_into(room, min(left, len(room)))
            line.sendall(b".")
        return {}


def say(**message: Any) -> None:  # Any: json
    """Answer a line."""
    print(json.dumps(message), flush=True)


class Fleet:
    """One sender and receivers, in processes of hosts."""

    def __init__(self, sender: Process, receivers: Sequence[Process], ports: Sequence[int], network: Network) -> None:
        self._sender, self._receivers, self._ports, self._network = sender, receivers, ports, network

    def update(self, fan_out: str, who: Sequence[int]) -> float:
        """Make one transfer to these receivers; return its seconds."""
        began = time.perf_counter()
        self._sender.tell(do="send", fan_out=fan_out, receivers=[f"receiver/{number}" for number in who])
        for number, offer in zip(who, self._sender.hear()["offers"], strict=True):
            self._receivers[number].tell(do="take", offer=offer)
        for number in who:
            self._sender.tell(**self._receivers[number].hear())
        self._sender.hear()
        return time.perf_counter() - began

    def raw(self, number: int, host: int) -> float:
        """Pour the bytes from the sender to a receiver on another host; return the seconds."""
        receiver = self._receivers[number]
        receiver.tell(do="drain")
        began = time.perf_counter()
        self._sender.tell(do="pour", address=self._network.addresses[host], port=self._ports[number])
        self._sender.hear()
        seconds = time.perf_counter() - began
        receiver.hear()
        return seconds


def measure(num_bytes: int, sizes: Sequence[int], repeats: int, mbit: float) -> dict[str, Any]:  # Any: json
    """Measure every way to every number of receivers in turns; return seconds and their ratios."""
    most = max(sizes)
    # Receivers 0..most-1 have a host each; the others, half as many, are on the sender's.
    places = [*range(1, most + 1), *[0] * (most // 2)]
    elsewhere, here = list(range(most // 2)), list(range(most, most + most // 2))
    with Network(most + 1, mbit_per_s=mbit) as network, ExitStack() as stack:
        made = [Process(network.inside(host), network.addresses[host], num_bytes) for host in (0, *places)]
        for process in made:
            stack.callback(process.close)
        ports = [process.hear()["port"] for process in made]
        fleet = Fleet(made[0], made[1:], ports[1:], network)
        actions = {"raw": partial(fleet.raw, 0, 1)}
        for name, fan_out in (("chain", "auto"), ("broadcast", "broadcast")):
            actions |= {f"{name} {size}": partial(fleet.update, fan_out, range(size)) for size in sizes}
        actions["placed all"] = partial(fleet.update, "auto", [*here, *elsewhere])
        actions["placed elsewhere"] = partial(fleet.update, "auto", elsewhere)
        actions["placed here by shm"] = partial(fleet.update, "shm", here)
        seconds: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(repeats):
            for name, action in actions.items():
                if name != "raw":
                    action()  # makes the group, which a run does once
                seconds[name].append(action())
    return summary(seconds, num_bytes, sizes)


def summary(rounds: dict[str, list[float]], num_bytes: int, sizes: Sequence[int]) -> dict[str, Any]:  # Any: json
    """Return seconds, ratios, and what the model says."""
    seconds = {name: statistics.median(values) for name, values in rounds.items()}
    rate = num_bytes / seconds["raw"]
    model = {f"chain {size}": chain_s(num_bytes, rate, size) for size in sizes}
    model |= {f"broadcast {size}": tree_s(num_bytes, rate, size) for size in sizes}
    alone, most = sizes[0], sizes[-1]
    bound = max("placed elsewhere", "placed here by shm", key=lambda name: seconds[name])
    return {
        "bytes": num_bytes,
        "raw_mbit_per_s": rate * 8 / 1e6,
        "seconds": seconds,
        "rounds": rounds,
        "model_seconds": model,
        "to_one_receiver": {
            name: frame.Figure.of(rounds[name], rounds[f"{name.split()[0]} {alone}"]) for name in model
        },
        "raw_against_chain": {str(size): frame.Figure.of(rounds["raw"], rounds[f"chain {size}"]) for size in sizes},
        "measured_against_model": {name: seconds[name] / model[name] for name in model},
        "placed_against_bound": frame.Figure.of(rounds["placed all"], rounds[bound]),
        "most": most,
    }


def main() -> int:
    """Measure; one result for the fan-out, one for the rate, one for the placement."""
    if "--serve" in sys.argv:
        frame.one_thread()
        Served(sys.argv[-2], int(sys.argv[-1])).run()
        return 0
    parser = frame.parser(__doc__)
    parser.add_argument("--mbit", type=float, default=200.0, help="rate of every link, in Mbit/s")
    options = parser.parse_args()
    num_bytes, sizes, repeats = (8 << 20, (1, 2), 1) if options.quick else (64 << 20, (1, 2, 4, 8), 5)
    try:
        found = measure(num_bytes, sizes, repeats, options.mbit)
    except Unavailable as error:
        print(f"weights_across_hosts: not measured, {error}")
        return 0
    most = found["most"]
    results = {
        "fan_out": ("seconds to", found["to_one_receiver"][f"chain {most}"]),
        "rate": ("seconds of one plain TCP connection / to", found["raw_against_chain"][str(most)]),
        "placement": (
            "half of them on the trainer's host, seconds / of the bound of any mixture, to",
            found["placed_against_bound"],
        ),
    }
    for name, (what, figure) in results.items():
        result = frame.Result(
            name=f"weights_across_hosts_{name}",
            script="weights_across_hosts",
            figure=figure,
            what=f"{what} {most} receivers" + (" / to one" if name == "fan_out" else ""),
            details=found,
        )
        frame.finish(result, quick=options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
