"""Bytes per second of a weight transfer between two processes, against plain ways to move the same bytes.

Counted is a whole transfer as `WeightSync` does it, controller's part excepted: sink in this process (copy and
fingerprint every tensor), source in another one (fingerprint every tensor there), receipts compared.

    shm         against copying the tensors once, with no check, in one process
    collective  against torch's own broadcasts over gloo on loopback, with no check
    disk        against safetensors: save here, load there, with no check
    delta       bytes that travel, and seconds, against whole tensors: bfloat16 weights before and after a step of
                AdamW at a learning rate of 1e-6

Each is also measured with the receiver copying the tensors into a model of its own, on both sides. Copies are made on
one thread, as torch makes them in such a process, transfers on as many as they take: the time of the processors of both
processes is told beside the ratios, and `shm_by_threads` is against copies that the machine's cores share.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import frame
import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist
from weight_peer import broadcast, make_tensors, serve

from areal_core.contract.optional import SupportsStreaming
from areal_core.contract.weights import WeightTransport
from areal_core.weights.coverage import compare
from areal_core.weights.tensors import manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig, DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_torch.bucketing import buckets

LEARNING_RATE = 1e-6
WARMUP = 2
"""Turns that are not counted; before the first change there is none."""
PLAIN = {
    "shm": "copy",
    "collective": "gloo",
    "disk": "safetensors",
    "shm_by_threads": "copy_on_threads",
    "delta": "whole",
    "shm_into_model": "copy_twice",
    "disk_into_model": "safetensors_into_model",
}
"""What each way is measured against."""
SAME_AS = {"shm_by_threads": "shm"}
"""Ratios of a way that has another one already."""


class Transfers:
    """The sending side and the plain ways to do the same."""

    def __init__(self, tensors: Mapping[str, Tensor], pipe: Connection, folder: Path) -> None:
        self.tensors, self._pipe, self._folder = dict(tensors), pipe, folder
        self._target = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        self._version = 0
        self.travelled: list[int] = []
        """Bytes of every change that was sent."""

    def send(
        self, way: str, transport: WeightTransport, tensors: Mapping[str, Tensor] | None = None, *, copy: bool = False
    ) -> None:
        """Make one transfer from open to release."""
        tensors = self.tensors if tensors is None else tensors
        self._version += 1
        offer = transport.open(self._version)
        streams = isinstance(transport, SupportsStreaming)
        if isinstance(transport, SupportsStreaming):
            self._pipe.send((way, transport.expect(offer, ["receiver"])[0], copy))
        sink = transport.sink(offer)
        sink.begin(manifest_of(tensors.items(), version=self._version))
        for bucket in buckets(tensors.items(), sink.bucket_bytes):
            sink.write(bucket)
        sent = sink.finish()
        if not streams:
            self._pipe.send((way, offer, copy))
        compare(sent, self._pipe.recv(), "receiver")
        transport.release(offer)
        if way == "delta":
            self.travelled.append(sink.store.outgoing.num_bytes)  # type: ignore[attr-defined]  # of this transport's store

    def copy(self) -> None:
        """Copy every tensor once."""
        for name, tensor in self.tensors.items():
            self._target[name].copy_(tensor)

    def copy_on_threads(self) -> None:
        """Copy every tensor once, on a thread for each core."""
        with ThreadPoolExecutor(frame.num_cores()) as threads:
            list(threads.map(lambda name: self._target[name].copy_(self.tensors[name]), self.tensors))

    def copy_twice(self) -> None:
        """Copy every tensor in and out."""
        self.copy()
        self.copy()

    def broadcast(self) -> None:
        """Send every tensor by a broadcast, with nothing else."""
        self._pipe.send(("gloo", None, False))
        broadcast(self.tensors)
        self._pipe.recv()

    def save_and_load(self, *, copy: bool) -> None:
        """Write one safetensors file here, read it there."""
        path = str(self._folder / "plain.safetensors")
        save_file(self.tensors, path)
        self._pipe.send(("safetensors", path, copy))
        self._pipe.recv()


class Updates:
    """Weights in bfloat16 before and after one step of AdamW, in turns."""

    def __init__(self, num_bytes: int) -> None:
        masters = {
            name: torch.nn.Parameter(tensor.mul_(0.02 if tensor.ndim == 2 else 1.0))
            for name, tensor in make_tensors(2 * num_bytes).items()
        }
        optimizer = torch.optim.AdamW(masters.values(), lr=LEARNING_RATE)
        self._states = [_served(masters)]
        for parameter in masters.values():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        self._states.append(_served(masters))
        self.num_bytes = sum(tensor.nbytes for tensor in self._states[0].values())

    def next(self) -> dict[str, Tensor]:
        """Return the other state."""
        self._states.reverse()
        return self.now

    @property
    def now(self) -> dict[str, Tensor]:
        """Return the state that `next` returned last."""
        return self._states[0]

    def share_changed(self) -> float:
        """Return the share of the elements that one step changes."""
        before, after = self._states
        changed = sum(int((before[name] != after[name]).sum()) for name in before)
        return changed / (self.num_bytes / 2)


def _served(masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to(torch.bfloat16) for name, tensor in masters.items()}


class Processors:
    """Seconds of the processors that two processes take for each action."""

    def __init__(self, other: int) -> None:
        self._processes = [psutil.Process(os.getpid()), psutil.Process(other)]
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def counted(self, name: str, action: Callable[[], object]) -> Callable[[], object]:
        """Return the action, counted."""

        def run() -> None:
            before = self._now()
            action()
            self.seconds[name].append(self._now() - before)

        return run

    def _now(self) -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._processes))


def measure(num_bytes: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Time every way in turns. Any: json."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    meeting = str(folder / "meeting")
    process = context.Process(target=serve, args=(other, num_bytes, meeting), daemon=True)
    process.start()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=2)
    assert pipe.recv() == "ready" and process.pid is not None
    shm, disk = ShmTransport(ShmConfig()), DiskTransport(DiskConfig(root=str(folder)))
    collective, whole = CollectiveTransport(), CollectiveTransport()
    delta = CollectiveTransport(CollectiveConfig(delta=True))
    ways, updates = Transfers(make_tensors(num_bytes), pipe, folder), Updates(num_bytes // 4)
    processors = Processors(process.pid)

    def compared(actions: Mapping[str, Callable[[], object]]) -> dict[str, frame.Timing]:
        counted = {name: processors.counted(name, action) for name, action in actions.items()}
        return frame.compare(counted, repeats=repeats, warmup=WARMUP)

    timing = compared({
        "shm": lambda: ways.send("shm", shm),
        "copy": ways.copy,
        "copy_on_threads": ways.copy_on_threads,
        "shm_into_model": lambda: ways.send("shm", shm, copy=True),
        "copy_twice": ways.copy_twice,
    }) | compared({
        "collective": lambda: ways.send("collective", collective),
        "gloo": ways.broadcast,
    }) | compared({
        "delta": lambda: ways.send("delta", delta, updates.next()),
        "whole": lambda: ways.send("whole", whole, updates.now),
    }) | compared({
        "disk": lambda: ways.send("disk", disk),
        "safetensors": lambda: ways.save_and_load(copy=False),
        "disk_into_model": lambda: ways.send("disk", disk, copy=True),
        "safetensors_into_model": lambda: ways.save_and_load(copy=True),
    })  # fmt: skip
    pipe.send(None)
    process.join(30)
    for transport in (shm, disk, collective, whole, delta):
        transport.close()
    dist.destroy_process_group()
    size = sum(tensor.nbytes for tensor in ways.tensors.values())
    sizes = dict.fromkeys(timing, size) | dict.fromkeys(("delta", "whole"), updates.num_bytes)
    return {
        "ratios": {
            name: frame.Figure.of(timing[plain].seconds, timing[SAME_AS.get(name, name)].seconds)
            for name, plain in PLAIN.items()
        },
        "processor_s": {name: statistics.mean(seconds[WARMUP:]) for name, seconds in processors.seconds.items()},
        "gb_per_s": {name: sizes[name] / t.median / 1e9 for name, t in timing.items()},
        "bytes": size,
        "delta_bytes_share": frame.Figure.of(ways.travelled[WARMUP:], updates.num_bytes),
        "delta_elements_share": updates.share_changed(),
        "timing": timing,
    }


def main() -> int:
    """Measure every transport; one result and one line each."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    num_bytes, repeats = (16 << 20, 2) if options.quick else (256 << 20, 9)
    with tempfile.TemporaryDirectory() as folder:
        details = measure(num_bytes, repeats, Path(folder))
    for name, plain in (
        ("shm", "a plain copy"),
        ("collective", "torch's broadcasts over gloo"),
        ("disk", "safetensors save and load"),
    ):
        result = frame.Result(
            name=f"weight_sync_{name}",
            script="weight_sync",
            figure=details["ratios"][name],
            what=f"bytes/s of {name} with fingerprints on both sides / of {plain}",
            details=details,
        )
        frame.finish(result, quick=options.quick)
    result = frame.Result(
        name="weight_sync_delta",
        script="weight_sync",
        figure=details["delta_bytes_share"],
        what=f"bytes of what changed at a learning rate of {LEARNING_RATE:g} / of whole bfloat16 tensors; "
        f"on loopback {details['ratios']['delta'].ratio:.2f} times as fast",
        details=details,
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
