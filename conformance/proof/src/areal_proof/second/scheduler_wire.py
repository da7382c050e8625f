"""One stream, whole messages: a count of frames, their sizes, then the frames of the core's codec.

Knows: how messages are cut.
Does not know: what they mean.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from areal_worker.codec import decode, encode

JOB, READY, BEAT, CALL, CANCEL, OK, FAILED = "job", "ready", "beat", "call", "cancel", "ok", "failed"


def send(writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
    """Queue one message. Any: what the codec takes; what it does not take is refused before a byte is sent."""
    frames = [bytes(frame) for frame in encode(message)]
    writer.write(struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames)))
    writer.writelines(frames)


async def receive(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Any: what the codec gives.

    Raises:
        asyncio.IncompleteReadError: the stream ended.
    """
    (count,) = struct.unpack("<I", await reader.readexactly(4))
    sizes = struct.unpack(f"<{count}Q", await reader.readexactly(8 * count))
    return decode([await reader.readexactly(size) for size in sizes])
