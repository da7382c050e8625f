"""Weights through a socket: the controller keeps the bytes in memory and serves them, to whoever knows the key.

    hello: 16 random bytes ->   <- hmac(key, hello)   then requests, each a json line and raw bytes

Knows: one request after the other on one loopback connection; what a complete version is.
Does not know: files, shared memory, engines, or anything of the core's own transports.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import torch
from attrs import Factory, define
from torch import Tensor

from areal_conformance.second.transport_config import SecondTransportConfig
from areal_core.contract.errors import CoverageError, StorageError, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, TensorSpec, WeightManifest
from areal_core.weights.fingerprint import fingerprint

TIMEOUT_S = 30.0
_HELLO = 16
_LINE = 64 * 1024 * 1024


@define
class Shelf:
    """One version in the controller's memory."""

    version: int
    announced: list[list[Any]] = Factory(list)  # Any: name, shape, dtype as in the manifest
    tied: dict[str, str] = Factory(dict)
    data: dict[str, bytearray] = Factory(dict)
    owner: int = 0
    readable: bool = False


class SecondTransport:
    """The transport `second`. Only the controller's end, the one that opens, serves."""

    def __init__(self, config: SecondTransportConfig | None = None) -> None:
        self._config = config or SecondTransportConfig()
        self._server: Server | None = None
        self._clients: list[Line] = []

    def open(self, version: int) -> Offer:
        """Make an empty shelf and tell where it is, with the key to it."""
        if self._server is None:
            try:
                self._server = Server()
            except OSError as error:
                raise StorageError("no socket for weights could be opened", why=str(error)) from error
        location = self._server.add(version)
        return Offer(
            transport="second", version=version, location={**location, "bucket_bytes": self._config.bucket_bytes}
        )

    def sink(self, offer: Offer) -> SocketSink:
        """Make the sending end."""
        return SocketSink(self._line, offer)

    def source(self, offer: Offer) -> SocketSource:
        """Make a receiving end of a finished version."""
        return SocketSource(self._line(offer), offer)

    def release(self, offer: Offer) -> None:
        """Clear the shelf. Idempotent."""
        if self._server is not None:
            self._server.remove(int(offer.location["shelf"]))

    def close(self) -> None:
        """Hang up, clear every shelf, end the server. Idempotent."""
        while self._clients:
            self._clients.pop().close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @property
    def shelves(self) -> dict[int, Shelf]:
        """What the controller's end holds, for those who look behind the contract."""
        return {} if self._server is None else self._server.shelves

    def _line(self, offer: Offer) -> Line:
        self._clients = [line for line in self._clients if not line.closed]
        self._clients.append(Line(offer))
        return self._clients[-1]


class Line:
    """A client's connection to the server of one offer. Every failure is a WeightSyncError."""

    def __init__(self, offer: Offer) -> None:
        address, key = str(offer.location["address"]), bytes.fromhex(str(offer.location["key"]))
        try:
            self._socket = socket.create_connection((address, int(offer.location["port"])), timeout=TIMEOUT_S)
            self._file = self._socket.makefile("rwb")
            self._file.write(hmac.digest(key, self._file.read(_HELLO), hashlib.sha256))
        except OSError as error:
            raise WeightSyncError(
                f"version {offer.version} cannot be reached", why=f"its offer was closed: {error}"
            ) from error
        self.closed = False

    def ask(self, request: Mapping[str, Any], payload: bytes | memoryview = b"") -> tuple[dict[str, Any], bytearray]:
        """Send one request and read its answer. Any: JSON.

        Raises:
            WeightSyncError: refused, or the other end is gone.
        """
        try:
            self._file.write(json.dumps({**request, "bytes": len(payload)}).encode() + b"\n")
            self._file.write(payload)
            self._file.flush()
            answer, data = read_message(self._file)
        except (OSError, ValueError) as error:
            raise WeightSyncError("the weights' connection broke", why=str(error) or "the other end is gone") from error
        if "error" in answer:
            kind = StorageError if answer.get("room") else WeightSyncError
            raise kind(str(answer["error"]), why=str(answer.get("why", "")))
        return answer, data

    def close(self) -> None:
        """Hang up. Idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()


class SocketSink:
    """The sending end. The fingerprint of a tensor is taken of the bytes as they go out."""

    def __init__(self, dial: Any, offer: Offer) -> None:  # Any: a callable of the offer that returns a Line
        self._dial, self._offer = dial, offer
        self._line: Line | None = None
        self._specs: dict[str, TensorSpec] = {}
        self._fingerprints: dict[str, str] = {}
        self._num_bytes = 0
        self._began: float | None = None
        self._ended = False

    @property
    def bucket_bytes(self) -> int:
        """Return what the controller's config says."""
        return int(self._offer.location["bucket_bytes"])

    def begin(self, manifest: WeightManifest) -> None:
        """Announce every tensor of the version."""
        if self._began is not None or self._ended:
            raise WeightSyncError("begin was called twice on one sink", fix="ask the transport for a new sink")
        if manifest.version != self._offer.version:
            self.abort()
            raise WeightSyncError(
                f"version {manifest.version} was announced", why=f"the offer is for version {self._offer.version}"
            )
        self._began = time.perf_counter()
        self._specs = {spec.name: spec for spec in manifest.tensors}
        try:
            self._check(manifest)
            self._line = self._dial(self._offer)
            announced = [[spec.name, list(spec.shape), spec.dtype] for spec in manifest.tensors]
            self._ask({"do": "begin", "tensors": announced, "tied": dict(manifest.tied), "size": _size(manifest)})
        except BaseException:
            self.abort()
            raise

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Check, fingerprint and send each tensor; on any error the version is dropped."""
        self._must_be_open()
        try:
            for name, tensor in bucket.items():
                self._check_tensor(name, tensor)
            for name, tensor in bucket.items():
                whole = tensor.detach().to("cpu", copy=True).contiguous()
                self._ask({"do": "put", "name": name}, bytes_of(whole))
                self._fingerprints[name] = fingerprint(whole)
                self._num_bytes += whole.numel() * whole.element_size()
        except BaseException:
            self.abort()
            raise

    def finish(self) -> Receipt:
        """Make the version readable."""
        self._must_be_open()
        missing = sorted(self._specs.keys() - self._fingerprints.keys())
        try:
            if missing:
                raise CoverageError(f"tensor {missing[0]!r} never came", why=f"{len(missing)} tensors are missing")
            self._ask({"do": "finish"})
        except BaseException:
            self.abort()
            raise
        self._hang_up()
        return Receipt(
            version=self._offer.version,
            num_bytes=self._num_bytes,
            seconds=time.perf_counter() - (self._began or 0.0),
            fingerprints=dict(self._fingerprints),
        )

    def abort(self) -> None:
        """Hang up: the server drops what a connection wrote and did not finish. Idempotent."""
        if not self._ended and self._line is not None:
            with contextlib.suppress(WeightSyncError):
                self._ask({"do": "abort"})
        self._hang_up()

    def _ask(self, request: Mapping[str, Any], payload: bytes | memoryview = b"") -> None:
        assert self._line is not None
        self._line.ask({**request, "shelf": self._offer.location["shelf"]}, payload)

    def _hang_up(self) -> None:
        self._ended = True
        if self._line is not None:
            self._line.close()

    def _must_be_open(self) -> None:
        if self._began is None or self._ended:
            raise WeightSyncError("the sink takes no tensors now", why="call begin once, then write, then finish")

    def _check(self, manifest: WeightManifest) -> None:
        if len(self._specs) != len(manifest.tensors):
            raise CoverageError(
                "a tensor is announced twice", why=f"{len(manifest.tensors)} specs, {len(self._specs)} names"
            )
        for name, carrier in manifest.tied.items():
            if name in self._specs or carrier not in self._specs:
                raise CoverageError(f"tied tensor {name!r} points to {carrier!r}", why="only the carrier is sent")

    def _check_tensor(self, name: str, tensor: Tensor) -> None:
        spec = self._specs.get(name)
        if spec is None:
            raise CoverageError(f"tensor {name!r} was not announced", why=f"{len(self._specs)} other names were")
        if name in self._fingerprints:
            raise CoverageError(f"tensor {name!r} was sent twice")
        found = TensorSpec(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        if found != spec:
            raise CoverageError(
                f"tensor {name!r} is {found.dtype} {found.shape}", why=f"announced: {spec.dtype} {spec.shape}"
            )


class SocketSource:
    """The receiving end: one request a tensor, so that a version is never held twice."""

    def __init__(self, line: Line, offer: Offer) -> None:
        self._line = line
        self._shelf = {"shelf": offer.location["shelf"], "version": offer.version}
        self._bucket_bytes = int(offer.location["bucket_bytes"])
        try:
            answer, _ = line.ask({"do": "manifest", **self._shelf})
        except BaseException:
            line.close()
            raise
        specs = tuple(TensorSpec(name=n, shape=tuple(s), dtype=d) for n, s, d in answer["tensors"])
        self._manifest = WeightManifest(version=offer.version, tensors=specs, tied=answer["tied"])

    @property
    def manifest(self) -> WeightManifest:
        """Return what the sender announced."""
        return self._manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield every tensor once."""
        bucket: dict[str, Tensor] = {}
        size = 0
        for spec in self._manifest.tensors:
            _, data = self._line.ask({"do": "get", "name": spec.name, **self._shelf})
            if bucket and size + len(data) > self._bucket_bytes:
                yield bucket
                bucket, size = {}, 0
            bucket[spec.name] = tensor_of(spec, data)
            size += len(data)
        if bucket:
            yield bucket

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._line.close()


class Server:
    """The controller's end: a thread that accepts, and one per connection."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.shelves: dict[int, Shelf] = {}
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._count = 0
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((self.host, 0))
        self._accepting = threading.Thread(target=self._accept, name="second-transport", daemon=True)
        self._accepting.start()

    def add(self, version: int) -> dict[str, str | int]:
        """Make an empty shelf; return where it is. Numbers are never used again."""
        with self._lock:
            self._count += 1
            self.shelves[self._count] = Shelf(version)
            address, port = self._listener.getsockname()[:2]
            return {"address": address, "port": port, "key": self._key.hex(), "shelf": self._count}

    def remove(self, number: int) -> None:
        """Clear a shelf, if it is there."""
        with self._lock:
            self.shelves.pop(number, None)

    def close(self) -> None:
        """End every connection and thread."""
        # A thread that waits in accept is only woken by shutting the socket down.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.shelves.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._connections[id(connection)] = connection
            thread = threading.Thread(target=self._serve, args=(connection,), name="second-transport", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        me = id(connection)
        try:
            with connection, connection.makefile("rwb") as file:
                if self.admits(connection, file):
                    self._answer_all(me, file)
        except (OSError, ValueError):
            pass  # the other end is gone, or talks nonsense; what it did not finish is dropped below
        finally:
            self._connections.pop(me, None)
            self._drop(me)

    def admits(self, connection: socket.socket, file: Any) -> bool:
        """Ask for proof that the other end knows the key. Any: a binary file."""
        hello = secrets.token_bytes(_HELLO)
        file.write(hello)
        file.flush()
        return hmac.compare_digest(file.read(32), hmac.digest(self._key, hello, hashlib.sha256))

    def _answer_all(self, me: int, file: Any) -> None:
        while True:
            request, payload = read_message(file)
            with self._lock:
                answer, data = self._answer(me, request, payload)
            file.write(json.dumps({**answer, "bytes": len(data)}).encode() + b"\n")
            file.write(data)
            file.flush()

    def _answer(self, me: int, request: dict[str, Any], payload: bytearray) -> tuple[dict[str, Any], bytes | bytearray]:
        shelf = self.shelves.get(int(request.get("shelf", 0)))
        if shelf is None:
            return {"error": "the weights offered are gone", "why": "the offer was released"}, b""
        return getattr(self, f"_do_{request['do']}")(me, shelf, request, payload)  # type: ignore[no-any-return]

    def _do_begin(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner or shelf.readable:
            return {"error": f"version {shelf.version} has a sender already"}, b""
        free = psutil.virtual_memory().available
        if request["size"] > free:
            why = f"{request['size'] / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free"
            return {"error": "the weights do not fit the controller's memory", "why": why, "room": True}, b""
        shelf.owner, shelf.announced, shelf.tied = me, request["tensors"], request["tied"]
        return {}, b""

    def _do_put(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner != me or shelf.readable:
            return {"error": f"version {shelf.version} is not yours to write"}, b""
        shelf.data[request["name"]] = payload
        return {}, b""

    def _do_finish(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner != me:
            return {"error": f"version {shelf.version} is not yours to finish"}, b""
        shelf.readable = True
        return {}, b""

    def _do_abort(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        self._clear(me, shelf)
        return {}, b""

    def _do_manifest(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if not shelf.readable or shelf.version != request["version"]:
            why = f"version {shelf.version} is {'ready' if shelf.readable else 'not finished'} there"
            return {"error": f"version {request['version']} cannot be read", "why": why}, b""
        return {"tensors": shelf.announced, "tied": shelf.tied}, b""

    def _do_get(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytearray]:
        return {}, shelf.data[request["name"]]

    def _drop(self, me: int) -> None:
        with self._lock:
            for shelf in self.shelves.values():
                self._clear(me, shelf)

    def _clear(self, me: int, shelf: Shelf) -> None:
        if shelf.owner == me and not shelf.readable:
            shelf.data.clear()
            shelf.announced = []


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def tensor_of(spec: TensorSpec, data: bytearray) -> Tensor:
    """Return the tensor these bytes are.

    Raises:
        WeightSyncError: they are too few or too many.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    count = int(torch.Size(spec.shape).numel())
    if count * dtype.itemsize != len(data):
        raise WeightSyncError(
            f"tensor {spec.name!r} came with {len(data)} bytes", why=f"{count} {spec.dtype} announced"
        )
    return torch.frombuffer(data, dtype=dtype).reshape(spec.shape) if count else torch.empty(spec.shape, dtype=dtype)


def read_message(file: Any) -> tuple[dict[str, Any], bytearray]:
    """Read one json line and the bytes it announces. Any: a binary file.

    Raises:
        ValueError: it ends in the middle, or is no message.
    """
    line = file.readline(_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("the other end is gone")
    head: dict[str, Any] = json.loads(line)
    data = bytearray(int(head.pop("bytes")))
    view, have = memoryview(data), 0
    while have < len(data):
        step = file.readinto(view[have:])
        if not step:
            raise ValueError("the other end is gone")
        have += step
    return head, data


def _size(manifest: WeightManifest) -> int:
    return sum(int(torch.Size(s.shape).numel()) * getattr(torch, s.dtype).itemsize for s in manifest.tensors)
