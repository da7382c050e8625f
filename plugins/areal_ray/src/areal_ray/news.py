"""What goes back and forth between a controller and a relay: numbered messages out, news home.

Knows: how frames become what Ray carries without copying them once more.
Does not know: Ray's calls (`relay`, `ray_worker`), or what the frames say (`areal_local.scheduler.rpc`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from areal_worker.codec import Frame

_LARGE_BYTES = 65_536
Packed = list[bytes | np.ndarray]
"""Frames as Ray carries them: large ones as arrays, whose memory it takes over as it is."""


@frozen(kw_only=True)
class News:
    """What a relay has to tell: messages of its worker, its worker's state, and what was added to the log."""

    messages: tuple[Packed, ...]
    status: bytes
    """A `WorkerStatus`, encoded."""
    log: bytes


class InOrder:
    """Puts numbered messages back into the order they were sent in: calls of an actor may begin in another one."""

    def __init__(self) -> None:
        self._next, self._early = 0, dict[int, Packed]()

    def due(self, number: int, message: Packed) -> Iterator[Packed]:
        """Take one message and yield those whose turn has come; numbers begin at 0 and none is left out."""
        self._early[number] = message
        while self._next in self._early:
            yield self._early.pop(self._next)
            self._next += 1


def packed(frames: Sequence[Frame]) -> Packed:
    """Return frames as Ray carries them."""
    return [_pack(frame) for frame in frames]


def unpacked(message: Packed, *, num_plain: int) -> list[Frame]:
    """Return the frames of a message, the first `num_plain` as bytes; the others may be read only."""
    return [_unpack(part, plain=number < num_plain) for number, part in enumerate(message)]


def _pack(frame: Frame) -> bytes | np.ndarray:
    view = memoryview(frame)
    return bytes(view) if view.nbytes < _LARGE_BYTES else np.frombuffer(view.cast("B"), np.uint8)


def _unpack(part: bytes | np.ndarray, *, plain: bool) -> Frame:
    if plain:
        return bytes(part)
    return part if isinstance(part, bytes) else memoryview(part.data)
