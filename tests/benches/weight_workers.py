"""Workers that move real tensors through a real transport, and break where a test says.

Knows: the weight methods of train and inference workers, in this process.
Does not know: models, processes or sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import WorkerDied
from areal_core.contract.inference import EngineStatus
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.weights.coverage import check_names
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_torch.bucketing import buckets

Fault = Exception | Callable[[Any], Any]
"""Raised instead of the answer, or applied to it. Any: the answer of the method it is for."""

_METHODS = ("send_weights", "receive_weights", "commit_weights", "abort_weights", "pause", "resume", "status")


class FaultyWorker:
    """A worker whose methods can be told to fail. `calls` names every call made."""

    host = "127.0.0.1"

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id
        self.calls: list[str] = []
        self.faults: dict[str, Fault] = {}
        self.turns = 1
        """Of the event loop that a call takes."""

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call `do_<method>`. Any: as in the contract."""
        self.calls.append(method)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        fault = self.faults.get(method)
        if isinstance(fault, WorkerDied):
            # Dead is dead: whatever is asked next fails alike.
            self.faults = dict.fromkeys(_METHODS, fault)
        if isinstance(fault, Exception):
            raise fault
        answer = getattr(self, f"do_{method}")(*args)
        return fault(answer) if fault is not None else answer


class SendingWorker(FaultyWorker):
    """A train rank that sends `tensors`; ranks above 0 take part and return None."""

    def __init__(self, worker_id: str, transport: WeightTransport, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(worker_id)
        self.tensors = dict(tensors)
        self._transport = transport

    def do_send_weights(self, offer: Offer | None, version: int) -> Receipt | None:
        """Send every tensor, bucket by bucket."""
        if offer is None:
            return None
        sink = self._transport.sink(offer)
        sink.begin(manifest_of(self.tensors.items(), version=version))
        for bucket in buckets(self.tensors.items(), sink.bucket_bytes):
            sink.write(bucket)
        return sink.finish()


class ReceivingWorker(FaultyWorker):
    """A replica that serves the tensors it committed last, and holds staged ones beside them."""

    def __init__(self, worker_id: str, transport: WeightTransport, names: Sequence[str]) -> None:
        super().__init__(worker_id)
        self.version = 0
        self.served: dict[str, Tensor] = {}
        self.staged: dict[str, Tensor] | None = None
        self.paused = False
        self._names = tuple(names)
        self._transport = transport

    def do_receive_weights(self, offer: Offer, version: int) -> Receipt:
        """Copy every tensor and fingerprint the copy."""
        source = self._transport.source(offer)
        check_names(self._names, source.manifest)
        staged: dict[str, Tensor] = {}
        for bucket in source.buckets():
            staged.update({name: torch.clone(tensor) for name, tensor in bucket.items()})
        source.close()
        self.staged = staged
        return Receipt(
            version=version,
            num_bytes=sum(tensor.nbytes for tensor in staged.values()),
            seconds=0.0,
            fingerprints={name: fingerprint(tensor) for name, tensor in staged.items()},
        )

    def do_commit_weights(self, version: int) -> None:
        """Serve what is staged."""
        assert self.staged is not None, f"{self.id} was told to commit what it never received"
        self.served, self.staged, self.version = self.staged, None, version

    def do_abort_weights(self) -> None:
        """Drop what is staged."""
        self.staged = None

    def do_pause(self, mode: str) -> None:
        """Remember it."""
        self.paused = True

    def do_resume(self) -> None:
        """Remember it."""
        self.paused = False

    def do_status(self) -> EngineStatus:
        """Return what routing needs."""
        return EngineStatus(version=self.version, num_running=0, num_waiting=0, paused=self.paused)
