"""The process that weights are sent to, in the benchmarks of transports.

Knows: how each way of sending is received.
Does not know: what is timed, or against what.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch import distributed as dist

from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.weights.coverage import Coverage
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
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


def serve(pipe: Connection, num_bytes: int, meeting: str) -> None:
    """Take what is sent, in the way that is named, until told to stop. `meeting` is a file of the plain gloo group."""
    torch.set_num_threads(1)
    model = {name: torch.zeros_like(tensor) for name, tensor in make_tensors(num_bytes).items()}
    transports: dict[str, WeightTransport] = {
        "shm": ShmTransport(),
        "disk": DiskTransport(),
        "collective": CollectiveTransport(),
        "whole": CollectiveTransport(),
        "delta": CollectiveTransport(),
    }
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=1, world_size=2)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        way, what, copy = message
        if isinstance(what, Offer):
            pipe.send(receive(transports[way], what, model if copy else None))
        elif way == "safetensors":
            pipe.send(load(what, model if copy else None))
        else:
            broadcast(model)
            pipe.send("taken")
    for transport in transports.values():
        transport.close()
    dist.destroy_process_group()


def receive(transport: WeightTransport, offer: Offer, model: Mapping[str, Tensor] | None) -> Receipt:
    """Take one version as engines do; with a model, copy into it and fingerprint what it holds then."""
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


def broadcast(tensors: Mapping[str, Tensor]) -> None:
    """Send or receive tensors by torch's own broadcasts over gloo, with no check."""
    for tensor in tensors.values():
        dist.broadcast(tensor, src=0)
