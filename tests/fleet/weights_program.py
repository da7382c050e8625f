"""A fleet on simulated hosts, each part a process of its own, told of addresses.

    controller OWN TRAINER REPLICA..    updates the fleet
    trainer OWN                         sends 4 MiB whose every number is the version
    replica OWN                         stages, commits and serves them

Calls go over TCP, so whatever happens to a link happens to them as well.

Knows: how a call becomes a line of json and back.
Does not know: links, or what a test makes of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from tests.benches.weight_workers import ReceivingWorker, SendingWorker

from areal_core.contract import errors
from areal_core.contract.errors import ArealError, WorkerDied, WorkerTimeout
from areal_core.contract.weights import Offer, Receipt
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightSync
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig

PORT = 7000
WAIT_S = 4.0
"""How long an end of the transport waits for another."""
CALL_S = 15.0
"""How long a call to a worker may take."""
ASK_S = 2.0
TENSORS = {f"layers.{number}": torch.zeros(512, 512) for number in range(4)}
"""4 MiB."""


class Trainer(SendingWorker):
    """Sends its version."""

    def do_send_weights(self, offer: Offer | None, version: int) -> Receipt | None:
        """Send tensors full of the version."""
        self.tensors = {name: torch.full_like(tensor, version) for name, tensor in TENSORS.items()}
        return super().do_send_weights(offer, version)


class Replica(ReceivingWorker):
    """Tells what it serves."""

    def do_serves(self) -> list[float]:
        """Return the version, and every number there is in what is served."""
        found = {float(value) for tensor in self.served.values() for value in tensor.unique()}
        return [self.version, *sorted(found)]


class Calls:
    """A worker of this process, called over TCP by its controller."""

    def __init__(self, worker: SendingWorker | ReceivingWorker) -> None:
        self._worker = worker

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer calls as they come, several at once."""
        lock, tasks = asyncio.Lock(), set[asyncio.Task[None]]()
        while line := await reader.readline():
            tasks.add(asyncio.ensure_future(self._answer(json.loads(line), writer, lock)))
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()

    async def _answer(self, told: dict[str, Any], writer: asyncio.StreamWriter, lock: asyncio.Lock) -> None:
        args = [Offer(**arg) if isinstance(arg, dict) else arg for arg in told["args"]]
        try:
            found = await asyncio.to_thread(getattr(self._worker, f"do_{told['method']}"), *args)
            answer: dict[str, Any] = {"result": attrs.asdict(found) if isinstance(found, Receipt) else found}
        except ArealError as error:
            answer = {"error": type(error).__name__, "what": str(error)}
        async with lock:
            writer.write((json.dumps({"id": told["id"], **answer}) + "\n").encode())
            await writer.drain()


class Remote:
    """The controller's end of a worker."""

    def __init__(self, worker_id: str, host: str) -> None:
        self.id, self.host = worker_id, host
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        """Connect to its process; again after a cut, of whose end the old connection hears late."""
        if self._listening is not None and self._writer is not None:
            self._listening.cancel()
            self._writer.transport.abort()
        reader, self._writer = await asyncio.open_connection(self.host, PORT)
        self._listening = asyncio.ensure_future(self._listen(reader))

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call `do_<method>` there. Any: as in the contract."""
        assert self._writer is not None
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        sent = [attrs.asdict(arg) if isinstance(arg, Offer) else arg for arg in args]
        self._writer.write((json.dumps({"id": number, "method": method, "args": sent}) + "\n").encode())
        try:
            answer = await asyncio.wait_for(self._waiting[number], timeout_s)
        except TimeoutError as error:
            raise WorkerTimeout(f"{self.id} did not answer {method} within {timeout_s:g} s") from error
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["what"])
        found = answer["result"]
        return Receipt(**found) if isinstance(found, dict) else found

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for future in self._waiting.values():
            future.set_exception(WorkerDied(f"{self.id} closed its connection"))


async def control(own: str, addresses: Sequence[str]) -> None:
    """Bring the fleet to the versions that lines of the input name; answer each with what became of it.

    Where a line says `anew`, all replicas are in service again.
    """
    trainer, *replicas = [Remote(f"rollout.{n}/0" if n else "actor/0", host) for n, host in enumerate(addresses)]
    transport = CollectiveTransport(CollectiveConfig(host=own, bucket_bytes=1 << 20, timeout_s=WAIT_S))
    print(json.dumps({"ready": True}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        told = json.loads(line)
        if told["anew"]:
            for worker in (trainer, *replicas):
                await worker.connect()
            pool = InferencePool(replicas)
            sync = WeightSync(trainers=[trainer], pool=pool, transport=transport, pause=None, timeout_s=CALL_S)
        outcome: dict[str, Any] = {}
        began = time.monotonic()
        try:
            update = await sync.update(told["version"])
            outcome["excluded"] = update.excluded
        except ArealError as error:
            outcome["error"] = f"{type(error).__name__}: {error}"
        outcome["seconds"] = time.monotonic() - began
        outcome["version"] = sync.version
        healthy = [replica.worker for replica in pool.replicas if replica.healthy]
        outcome["serves"] = {worker.id: await worker.call("serves", timeout_s=ASK_S) for worker in healthy}
        print(json.dumps(outcome), flush=True)
    transport.close()


async def work(address: str, *, trains: bool) -> None:
    """Be a worker until the input ends."""
    transport = CollectiveTransport()
    worker = Trainer("actor", transport, TENSORS) if trains else Replica("rollout", transport, list(TENSORS))
    server = await asyncio.start_server(Calls(worker).serve, address, PORT)
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.close()
    transport.close()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("areal-weights")]
    print(json.dumps({"left": left}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    role, *where = sys.argv[1:]
    asyncio.run(control(where[0], where[1:]) if role == "controller" else work(where[0], trains=role == "trainer"))
