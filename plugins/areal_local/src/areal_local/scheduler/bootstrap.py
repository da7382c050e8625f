"""What a worker is told at birth, and what it answers: two lines of JSON over inherited pipes.

Knows: the fields of both lines.
Does not know: who writes or reads them. Keys travel only here: never in argv, the environment, a file or a log.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec
from attrs import field, frozen

from areal_core.contract.errors import CodecError

T = TypeVar("T", "Bootstrap", "Ready")


@frozen(kw_only=True)
class Bootstrap:
    """Controller to worker, on standard input, which then stays open for as long as the controller lives."""

    worker: str
    engine_role: str
    backend: str
    imports: tuple[str, ...]
    host: str
    """Address the worker is reached at; collectives of its engine keep to its interface."""
    listen: str
    """Where it listens: a folder of Unix sockets on the controller's machine; else `host`, or "*" where the scheduler
    was told to listen on every interface."""
    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    schema: str
    """`worker.schema.fingerprint()` of the controller."""
    ready_descriptor: int = -1
    """The pipe to answer on; set when the process is made."""


@frozen(kw_only=True)
class Ready:
    """Worker to controller, on the pipe named by `ready_descriptor`: it listens. Or `error`, and it ends."""

    rpc_port: int = 0
    heartbeat_port: int = 0
    error: str = ""


def read_line(descriptor: int) -> bytes:
    """Return one line without reading beyond it; what ends early ends the line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        octet = os.read(descriptor, 1)
        if not octet:
            break
        line += octet
    return bytes(line)


def to_line(message: Bootstrap | Ready) -> bytes:
    """Return the message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def bootstrap_from(line: bytes) -> Bootstrap:
    """Read what `to_line` wrote.

    Raises:
        CodecError: it is something else.
    """
    return _read(line, Bootstrap)


def ready_from(line: bytes) -> Ready:
    """Read what `to_line` wrote.

    Raises:
        CodecError: it is something else.
    """
    return _read(line, Ready)


def _read(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as exc:
        raise CodecError(f"not a {kind.__name__} line", why=str(exc)) from exc
