"""One json message after another over a connected socket.

Knows: lengths, and what the end of a stream means.
Does not know: what is said.
"""

from __future__ import annotations

import json
import socket
from typing import Any

_HEADER = 8


class Gone(ConnectionError):
    """The other end is closed, or its process has ended."""


class Abandoned(RuntimeError):
    """Another rank, which this one waits for, has ended; what it ended with is what counts."""


def send(connection: socket.socket, message: Any) -> None:
    """Send one message; Gone if nobody is there to read it. Any: whatever json can hold."""
    payload = json.dumps(message).encode()
    try:
        connection.sendall(len(payload).to_bytes(_HEADER, "little") + payload)
    except OSError as error:
        raise Gone(str(error)) from error


def receive(connection: socket.socket) -> Any:
    """Wait for one message; Gone if the other end is closed. Any: whatever json can hold."""
    length = int.from_bytes(_exactly(connection, _HEADER), "little")
    return json.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        try:
            part = connection.recv(min(length, 1 << 20))
        except OSError as error:
            raise Gone(str(error)) from error
        if not part:
            raise Gone("the stream ended")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
