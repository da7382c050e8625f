"""Weights through a socket: the controller keeps the bytes in memory and serves them, to whoever knows the key.

    hello: 16 random bytes ->   <- hmac(key, hello)   then requests, each a json line and raw bytes

Knows: the two ends an engine holds, and one request after the other on one loopback connection.
Does not know: files, shared memory, engines, or anything of the core's own transports.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import CoverageError, StorageError, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, TensorSpec, WeightManifest
from areal_core.weights.tensors import fingerprint
from areal_proof.second.transport_config import SecondTransportConfig
from areal_proof.second.transport_server import Server, Shelf
from areal_proof.second.transport_wire import HELLO, TIMEOUT_S, bytes_of, read_message, tensor_of


class SecondTransport:
    """The transport `second`. Only the controller's end, the one that opens, serves."""

    def __init__(self, config: SecondTransportConfig | None = None) -> None:
        self._config = config or SecondTransportConfig()
        self.server: Server | None = None
        self._clients: list[Line] = []

    def open(self, version: int) -> Offer:
        """Make an empty shelf and tell where it is, with the key to it."""
        if self.server is None:
            try:
                self.server = Server()
            except OSError as error:
                raise StorageError("no socket for weights could be opened", why=str(error)) from error
        location = self.server.add(version)
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
        if self.server is not None:
            self.server.remove(int(offer.location["shelf"]))

    def close(self) -> None:
        """Hang up, clear every shelf, end the server. Idempotent."""
        while self._clients:
            self._clients.pop().close()
        server, self.server = self.server, None
        if server is not None:
            server.close()

    @property
    def shelves(self) -> dict[int, Shelf]:
        """What the controller's end holds, for those who look behind the contract."""
        return {} if self.server is None else self.server.shelves

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
            self._file.write(hmac.digest(key, self._file.read(HELLO), hashlib.sha256))
        except OSError as error:
            raise WeightSyncError(
                f"version {offer.version} cannot be reached", why=f"its offer was closed: {error}"
            ) from error
        self.closed = False

    def ask(self, request: Mapping[str, Any], payload: bytes | memoryview = b"") -> tuple[dict[str, Any], bytearray]:
        """Send one request and read its answer. Any: JSON."""
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


def _size(manifest: WeightManifest) -> int:
    return sum(int(torch.Size(s.shape).numel()) * getattr(torch, s.dtype).itemsize for s in manifest.tensors)
