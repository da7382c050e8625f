"""The controller's end of the second transport: every version in memory, served to whoever knows the key.

Knows: requests, what a complete version is.
Does not know: the clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
from typing import Any

import psutil
from attrs import Factory, define

from areal_proof.second.transport_wire import HELLO, read_message


@define
class Shelf:
    """One version in the controller's memory."""

    version: int
    announced: list[list[Any]] = Factory(list)  # Any: name, shape, dtype as in the manifest
    tied: dict[str, str] = Factory(dict)
    data: dict[str, bytearray] = Factory(dict)
    owner: int = 0
    readable: bool = False


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
        hello = secrets.token_bytes(HELLO)
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
        return getattr(self, f"do_{request['do']}")(me, shelf, request, payload)  # type: ignore[no-any-return]

    def do_begin(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner or shelf.readable:
            return {"error": f"version {shelf.version} has a sender already"}, b""
        free = psutil.virtual_memory().available
        if request["size"] > free:
            why = f"{request['size'] / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB are free"
            return {"error": "the weights do not fit the controller's memory", "why": why, "room": True}, b""
        shelf.owner, shelf.announced, shelf.tied = me, request["tensors"], request["tied"]
        return {}, b""

    def do_put(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner != me or shelf.readable:
            return {"error": f"version {shelf.version} is not yours to write"}, b""
        shelf.data[request["name"]] = payload
        return {}, b""

    def do_finish(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if shelf.owner != me:
            return {"error": f"version {shelf.version} is not yours to finish"}, b""
        shelf.readable = True
        return {}, b""

    def do_abort(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        self.clear(me, shelf)
        return {}, b""

    def do_manifest(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        if not shelf.readable or shelf.version != request["version"]:
            why = f"version {shelf.version} is {'ready' if shelf.readable else 'not finished'} there"
            return {"error": f"version {request['version']} cannot be read", "why": why}, b""
        return {"tensors": shelf.announced, "tied": shelf.tied}, b""

    def do_get(self, me: int, shelf: Shelf, request: Any, payload: bytearray) -> tuple[dict[str, Any], bytearray]:
        return {}, shelf.data[request["name"]]

    def _drop(self, me: int) -> None:
        with self._lock:
            for shelf in self.shelves.values():
                self.clear(me, shelf)

    def clear(self, me: int, shelf: Shelf) -> None:
        if shelf.owner == me and not shelf.readable:
            shelf.data.clear()
            shelf.announced = []
