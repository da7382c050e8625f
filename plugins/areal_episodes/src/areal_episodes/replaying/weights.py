"""The weights of every version, sent as a run sends them, to nobody: what is left is their fingerprint.

Knows: the sending half of a weight update.
Does not know: a fleet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from areal_core.contract.scheduler import Worker
from areal_core.contract.weights import Receipt, WeightTransport
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.weights.tensors import combined


class Fingerprints:
    """Satisfies `areal_core.loop.train_loop.Weights`."""

    def __init__(self, trainers: Sequence[Worker], transport: WeightTransport, *, timeout_s: float) -> None:
        """Ask every rank of the actor, in rank order; rank 0 holds the sending end."""
        self._trainers, self._transport, self._timeout_s = trainers, transport, timeout_s
        self._last: Mapping[str, str] = {}

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Enclose a step: nobody else asks for weights."""
        yield

    async def update(self, version: int) -> WeightUpdate:
        """Return what an update of a fleet would, replicas left out."""
        started = time.monotonic()
        offer = await asyncio.to_thread(self._transport.open, version)
        try:
            receipts = await gather_or_cancel(
                [
                    worker.call("send_weights", None if rank else offer, version, timeout_s=self._timeout_s)
                    for rank, worker in enumerate(self._trainers)
                ]
            )
        finally:
            await asyncio.to_thread(self._transport.release, offer)
        sent = receipts[0]
        assert isinstance(sent, Receipt)
        unchanged = sum(self._last.get(name) == digits for name, digits in sent.fingerprints.items())
        self._last = sent.fingerprints
        return WeightUpdate(
            version=version,
            num_tensors=len(sent.fingerprints),
            num_bytes=sent.num_bytes,
            unchanged=unchanged,
            seconds=time.monotonic() - started,
            phases={},
            fingerprint=combined(sent.fingerprints),
        )
