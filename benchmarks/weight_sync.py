"""Bytes per second of a weight transfer between two processes, against a plain copy of the same bytes.

Counted is a whole transfer as `WeightSync` does it, controller's part excepted: sink in this process (copy and
fingerprint every tensor), source in another one (fingerprint every tensor there), receipts compared.

    shm         against copying the tensors once, with no check, in one process
    collective  against the same; gloo on loopback, the receiver at work while the sender is
    disk        against safetensors: save here, load there, with no check

Each is also measured with the receiver copying the tensors into a model of its own, on both sides.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import frame
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_core.contract.optional import SupportsStreaming
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.weights.coverage import Coverage, compare
from areal_core.weights.tensors import manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_torch.bucketing import buckets
from areal_torch.proved_copy import copy_proved, prove

TENSOR_ELEMENTS = 1 << 20


def make_tensors(num_bytes: int) -> dict[str, Tensor]:
    """Return float32 tensors of 4 MiB, as many as fit, and one norm for each, as models have them."""
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for number in range(num_bytes // (4 * TENSOR_ELEMENTS)):
        tensors[f"layers.{number}.weight"] = torch.randn(1024, 1024, generator=generator)
        tensors[f"layers.{number}.norm"] = torch.randn(1024, generator=generator)
    return tensors


def receiver(pipe: Connection, num_bytes: int) -> None:
    """Serve transfers in the other process until told to stop."""
    torch.set_num_threads(1)
    model = {name: torch.zeros_like(tensor) for name, tensor in make_tensors(num_bytes).items()}
    transports: dict[str, WeightTransport] = {
        "shm": ShmTransport(),
        "disk": DiskTransport(),
        "collective": CollectiveTransport(),
    }
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        what, copy = message
        held = model if copy else None
        pipe.send(load(what, held) if isinstance(what, str) else receive(transports[what.transport], what, held))
    for transport in transports.values():
        transport.close()


def receive(transport: WeightTransport, offer: Offer, model: Mapping[str, Tensor] | None) -> Receipt:
    """Take one version; with a model, copy into it and fingerprint what it holds then."""
    began = time.perf_counter()
    source = transport.source(offer)
    coverage = Coverage(source.manifest)
    for bucket in source.buckets():
        for name, tensor in bucket.items():
            coverage.check(name, tensor)
        held = prove(list(bucket.values())) if model is None else copy_proved((model[n], t) for n, t in bucket.items())
        for name, digits in zip(bucket, held, strict=True):
            coverage.record(name, digits)
    source.close()
    return coverage.receipt(time.perf_counter() - began)


def load(path: str, model: Mapping[str, Tensor] | None) -> float:
    """Load a safetensors file and touch every byte, by copying it or by adding it up."""
    total = 0.0
    for name, tensor in load_file(path).items():
        if model is None:
            total += float(tensor.sum())
        else:
            model[name].copy_(tensor)
    return total


class Transfers:
    """The sending side and the plain ways to do the same."""

    def __init__(self, tensors: Mapping[str, Tensor], pipe: Connection, folder: Path) -> None:
        self._tensors, self._pipe, self._folder = dict(tensors), pipe, folder
        self._target = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        self._version = 0

    def send(self, transport: WeightTransport, *, copy: bool) -> None:
        """Make one transfer from open to release."""
        self._version += 1
        offer = transport.open(self._version)
        streams = isinstance(transport, SupportsStreaming)
        if isinstance(transport, SupportsStreaming):
            self._pipe.send((transport.expect(offer, ["receiver"])[0], copy))
        sink = transport.sink(offer)
        sink.begin(manifest_of(self._tensors.items(), version=self._version))
        for bucket in buckets(self._tensors.items(), sink.bucket_bytes):
            sink.write(bucket)
        sent = sink.finish()
        if not streams:
            self._pipe.send((offer, copy))
        compare(sent, self._pipe.recv(), "receiver")
        transport.release(offer)

    def copy(self) -> None:
        """Copy every tensor once."""
        for name, tensor in self._tensors.items():
            self._target[name].copy_(tensor)

    def copy_twice(self) -> None:
        """Copy every tensor in and out."""
        self.copy()
        self.copy()

    def save_and_load(self, *, copy: bool) -> None:
        """Write one safetensors file here, read it there."""
        path = str(self._folder / "plain.safetensors")
        save_file(self._tensors, path)
        self._pipe.send((path, copy))
        self._pipe.recv()


def measure(num_bytes: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Time every way in turns. Any: json."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=receiver, args=(other, num_bytes), daemon=True)
    process.start()
    assert pipe.recv() == "ready"
    shm, disk = ShmTransport(ShmConfig()), DiskTransport(DiskConfig(root=str(folder)))
    collective = CollectiveTransport()
    tensors = make_tensors(num_bytes)
    ways = Transfers(tensors, pipe, folder)
    memory = frame.compare(
        {
            "shm": lambda: ways.send(shm, copy=False),
            "copy": ways.copy,
            "collective": lambda: ways.send(collective, copy=False),
            "collective_into_model": lambda: ways.send(collective, copy=True),
            "shm_into_model": lambda: ways.send(shm, copy=True),
            "copy_twice": ways.copy_twice,
        },
        repeats=repeats,
        warmup=2,
    )
    files = frame.compare(
        {
            "disk": lambda: ways.send(disk, copy=False),
            "safetensors": lambda: ways.save_and_load(copy=False),
            "disk_into_model": lambda: ways.send(disk, copy=True),
            "safetensors_into_model": lambda: ways.save_and_load(copy=True),
        },
        repeats=repeats,
    )
    pipe.send(None)
    process.join(30)
    shm.close()
    disk.close()
    collective.close()
    timing = {**memory, **files}
    size = sum(tensor.nbytes for tensor in tensors.values())
    pairs = {"shm": "copy", "collective": "copy", "disk": "safetensors"}
    pairs |= {"shm_into_model": "copy_twice", "collective_into_model": "copy_twice"}
    pairs["disk_into_model"] = "safetensors_into_model"
    return {
        "ratios": {name: timing[plain].median / timing[name].median for name, plain in pairs.items()},
        "gb_per_s": {name: size / t.median / 1e9 for name, t in timing.items()},
        "bytes": size,
        "timing": timing,
    }


def main() -> int:
    """Measure every transport; one result and one line each."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    num_bytes, repeats = (16 << 20, 2) if options.quick else (256 << 20, 9)
    with tempfile.TemporaryDirectory() as folder:
        details = measure(num_bytes, repeats, Path(folder))
    for name, target, plain in (
        ("shm", 0.5, "a plain copy"),
        ("collective", None, "a plain copy"),
        ("disk", 0.9, "safetensors save and load"),
    ):
        result = frame.Result(
            name=f"weight_sync_{name}",
            script="weight_sync",
            ratio=details["ratios"][name],
            target=target,
            what=f"bytes/s of {name} with fingerprints on both sides / of {plain}",
            details=details,
        )
        frame.finish(result, quick=options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
