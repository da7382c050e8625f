"""Processes that send weights, to be killed in the middle of it.

Knows: how far each role gets before it says so and waits.
Does not know: who reads.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from attrs import frozen

from areal_core.contract.weights import Offer
from areal_core.weights.tensors import manifest_of
from areal_local.transports.config import DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport

Place = tuple[str, dict[str, str | int]]
"""An offer, as it goes to another process."""
PATIENCE_S = 200.0
_CONTEXT = multiprocessing.get_context("forkserver")  # torch is imported once for all of them
_CONTEXT.set_forkserver_preload([__name__])


@frozen
class Writer:
    """A process that has written what its role writes, and waits."""

    process: BaseProcess
    line: Connection

    def end(self, *, kill: bool) -> None:
        """End it by kill -9, or let it end by itself."""
        if kill:
            self.process.kill()
        else:
            self.line.send("go on")
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == (-9 if kill else 0)
        self.line.close()


def start_writer(kind: str, root: Path, role: str, offer: Offer | None = None) -> Writer:
    """Return a process once it has written: as `controller` of an offer of its own, else as sender of this one.

    Args:
        role: `finishes` finishes the transfer, the others are in the middle of it.
    """
    ours, theirs = _CONTEXT.Pipe()
    location = None if offer is None else (offer.transport, dict(offer.location))
    process = _CONTEXT.Process(target=_write, args=(kind, str(root), role, location, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(PATIENCE_S) and ours.recv() == "ready"
    return Writer(process, ours)


def _write(
    kind: str, root: str, role: str, location: tuple[str, dict[str, str | int]] | None, line: Connection
) -> None:
    transport = (
        DiskTransport(DiskConfig(root=root)) if kind == "disk" else ShmTransport(ShmConfig(backing=kind, folder=root))
    )
    offer = transport.open(1) if location is None else Offer(transport=location[0], version=1, location=location[1])
    sink = transport.sink(offer)
    tensors = {"w": torch.arange(100_000.0)}
    sink.begin(manifest_of(tensors.items(), version=1))
    sink.write(tensors)
    if role == "finishes":
        sink.finish()
    line.send("ready")
    line.recv()
