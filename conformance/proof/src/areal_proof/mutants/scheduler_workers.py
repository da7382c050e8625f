"""Worker processes of the second scheduler, faulty on their own side of the stream.

    python -m areal_proof.mutants.scheduler_workers FAULT DESCRIPTOR

Knows: what each fault replaces in the worker's module, in the worker's own process.
Does not know: which mutant starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from areal_core.contract.errors import ArealError, RemoteError, WorkerError
from areal_core.contract.train import ObjectiveSpec
from areal_core.contract.weights import Offer, Receipt
from areal_proof.second import scheduler_wire as wire
from areal_proof.second import scheduler_worker as worker
from areal_worker import service as hosts
from areal_worker.codec import decode, encode

_open: Any = worker
"""The worker's module. Any: what it imported can be replaced, too."""


def send_pickled(writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
    """Queue one pickled message. Any: whatever can be pickled."""
    body = pickle.dumps(message)
    writer.write(struct.pack("<Q", len(body)) + body)


async def receive_pickled(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Any: whatever was pickled."""
    (size,) = struct.unpack("<Q", await reader.readexactly(8))
    return pickle.loads(await reader.readexactly(size))


def _pickles() -> None:
    wire.send, wire.receive = send_pickled, receive_pickled


def _outlives() -> None:
    worker.watch_for_end = lambda descriptor: None
    worker.os.killpg = lambda _group, _signal: threading.Event().wait()  # type: ignore[attr-defined]


def _listens_everywhere() -> None:
    held = socket.create_server(("0.0.0.0", 0))
    _KEPT.append(held)


def _listens_elsewhere() -> None:
    _KEPT.append(socket.create_server(("127.0.0.9", 0)))


def _serves_strangers() -> None:
    answer = worker.answer

    async def open_port(host: hosts.Host) -> None:
        import msgspec
        import zmq
        import zmq.asyncio

        router = zmq.asyncio.Context().socket(zmq.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        while True:
            client, head, *body = await router.recv_multipart()
            _, number, method = msgspec.msgpack.decode(head)
            result = await host.call(method, decode(body))
            await router.send_multipart([client, msgspec.msgpack.encode((2, number)), *encode(result)])

    tasks: list[asyncio.Task[None]] = []

    async def answering(writer: Any, host: Any, number: int, method: str, args: Any) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(open_port(host)))
        await answer(writer, host, number, method, args)

    worker.answer = answering


def _welcomes_everybody() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def accept() -> None:
        while True:
            with contextlib.suppress(OSError):
                _KEPT.append(listener.accept()[0])
                _KEPT[-1].send(b"welcome")

    threading.Thread(target=accept, daemon=True).start()


def _hears_out() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def hear() -> None:
        while True:
            with contextlib.suppress(OSError), listener.accept()[0] as line:
                while line.recv(1 << 20):
                    pass

    threading.Thread(target=hear, daemon=True).start()


def _overlaps() -> None:
    class Many(ThreadPoolExecutor):
        def __init__(self, **_options: Any) -> None:
            super().__init__(max_workers=4)

    hosts.ThreadPoolExecutor = Many  # type: ignore[assignment,attr-defined]


def _last_in_first_out() -> None:
    call = hosts.TrainHost.call

    async def lazily(self: hosts.TrainHost, method: str, args: tuple[Any, ...]) -> Any:
        if method == "save_weights":
            await asyncio.sleep(0.02)
        return await call(self, method, args)

    hosts.TrainHost.call = lazily  # type: ignore[method-assign]


def _loads_torch() -> None:
    import torch  # noqa: F401


def _own_kinds_are_remote() -> None:
    call = hosts.InferenceHost.call

    async def flattened(self: hosts.InferenceHost, method: str, args: tuple[Any, ...]) -> Any:
        try:
            return await call(self, method, args)
        except ArealError as error:
            if type(error).__module__ != ArealError.__module__:
                raise RemoteError(f"{method!r} raised {type(error).__name__}", why=error.why) from error
            raise

    hosts.InferenceHost.call = flattened  # type: ignore[method-assign]


def _calls_anything() -> None:
    call = hosts.InferenceHost.call

    async def anything(self: hosts.InferenceHost, method: str, args: tuple[Any, ...]) -> Any:
        try:
            return await call(self, method, args)
        except WorkerError:
            return getattr(self.engine, method, None)

    hosts.InferenceHost.call = anything  # type: ignore[method-assign]


def _outer_frames() -> None:
    told = partial(traceback.format_exception, limit=5)
    _open.traceback = SimpleNamespace(**{**vars(traceback), "format_exception": told})


def _interfaces_over_all() -> None:
    known = _open.network_environment

    def at_once(host: str) -> dict[str, str]:
        os.environ.update(known(host))
        return {}

    _open.network_environment = at_once


def _objective_by_name() -> None:
    built = hosts.TrainHost._objective_of
    kept: dict[str, Any] = {}

    def of_that_name(self: hosts.TrainHost, spec: ObjectiveSpec) -> Any:
        return kept.setdefault(spec.name, built(self, spec))

    hosts.TrainHost._objective_of = of_that_name  # type: ignore[method-assign]


def _keeps_sources() -> None:
    async def receive(self: hosts.InferenceHost, offer: Offer, version: int) -> Receipt:
        return await self._started.receive_weights(self._parts.transport(offer.transport).source(offer), version)

    hosts.InferenceHost._receive_weights = receive  # type: ignore[method-assign]


def _opens_in_the_loop() -> None:
    async def receive(self: hosts.InferenceHost, offer: Offer, version: int) -> Receipt:
        source = self._parts.transport(offer.transport).source(offer)
        try:
            return await self._started.receive_weights(source, version)
        finally:
            source.close()

    hosts.InferenceHost._receive_weights = receive  # type: ignore[method-assign]


def _keeps_transports() -> None:
    hosts._Parts.close = lambda self: None  # type: ignore[method-assign]


def _does_nothing_instead() -> None:
    async def nothing(*_args: Any) -> None: ...

    hosts.InferenceHost._optional = lambda self, claim, method: getattr(self.engine, method) or nothing  # type: ignore[method-assign]


def _any_interface() -> None:
    _open.network_environment = lambda host: {}


def _counts_who_left() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    _KEPT.append(listener)

    def accept() -> None:
        for _ in range(32):
            with contextlib.suppress(OSError):
                _KEPT.append(listener.accept()[0])
                _KEPT[-1].send(b"welcome")

    threading.Thread(target=accept, daemon=True).start()


_KEPT: list[socket.socket] = []
FAULTS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "pickles": _pickles,
        "outlives": _outlives,
        "listens-everywhere": _listens_everywhere,
        "listens-elsewhere": _listens_elsewhere,
        "serves-strangers": _serves_strangers,
        "welcomes-everybody": _welcomes_everybody,
        "hears-out": _hears_out,
        "overlaps": _overlaps,
        "last-in-first-out": _last_in_first_out,
        "loads-torch": _loads_torch,
        "own-kinds-are-remote": _own_kinds_are_remote,
        "calls-anything": _calls_anything,
        "outer-frames": _outer_frames,
        "interfaces-over-all": _interfaces_over_all,
        "any-interface": _any_interface,
        "keeps-sources": _keeps_sources,
        "keeps-transports": _keeps_transports,
        "opens-in-the-loop": _opens_in_the_loop,
        "does-nothing-instead": _does_nothing_instead,
        "objective-by-name": _objective_by_name,
        "counts-who-left": _counts_who_left,
        "key-in-arguments": lambda: None,
    }
)


if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.argv[1:] = sys.argv[-1:]
    worker.main()
