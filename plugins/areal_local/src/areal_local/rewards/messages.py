"""Messages between the controller and a reward process, as bytes on a channel; nothing is ever unpickled.

Knows: how a message becomes bytes, and how what rows of data sets hold beside plain data travels.
Does not know: who asks or answers.
"""

from __future__ import annotations

import datetime
import decimal
import io
import pathlib
import struct
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from areal_core.contract.errors import CodecError
from areal_core.contract.workflow import RewardInput
from areal_worker import codec

LENGTH = struct.Struct("!Q")
"""Before each message on the channel: its bytes."""

_CARRIED = "areal_local.rewards: carried"
_FROM_TEXT: dict[str, Callable[[str], object]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "int": int,
    "Decimal": decimal.Decimal,
    "Path": pathlib.Path,
    "UUID": uuid.UUID,
}
"""Types that travel as their text, and how they are made of it."""


def encode(message: object) -> bytes:
    """Return the bytes of a message.

    Raises:
        CodecError: it holds something that does not travel.
    """
    frames = [bytes(frame) for frame in codec.encode(message)]
    sizes = b"".join(LENGTH.pack(len(frame)) for frame in frames)
    return b"".join([LENGTH.pack(len(frames)), sizes, *frames])


def decode(data: bytes) -> Any:
    """Undo `encode`. Any: the sender decides.

    Raises:
        CodecError: these bytes are no message.
    """
    try:
        (count,) = LENGTH.unpack_from(data)
        place = LENGTH.size * (count + 1)
        frames = []
        for (size,) in LENGTH.iter_unpack(data[LENGTH.size : place]):
            frames.append(data[place : place + size])
            place += size
    except struct.error as error:
        raise CodecError("a message is torn", why=str(error)) from error
    return codec.decode(frames)


def encode_completions(values: Sequence[RewardInput]) -> bytes:
    """Return the bytes of completions; rows may hold arrays, images, dates and paths beside plain data.

    Raises:
        CodecError: a row holds something else; names its column and type.
    """
    try:
        return encode(list(values))
    except CodecError:
        return encode([attrs.evolve(value, row=carried(value.row)) for value in values])


def decode_completions(data: bytes) -> list[RewardInput]:
    """Undo `encode_completions`."""
    values: list[RewardInput] = decode(data)
    return [attrs.evolve(value, row=delivered(value.row)) if _holds(value.row) else value for value in values]


def carried(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as what `encode` takes. Any: the data set decides what a row holds.

    Raises:
        CodecError: it holds what travels to no other process; names its column and type.
    """
    return {name: _carried(item, str(name)) for name, item in row.items()}


def delivered(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Undo `carried`. Any: as in the row."""
    return {name: _delivered(item) for name, item in row.items()} if _holds(row) else row


def _carried(value: Any, column: str) -> object:
    """Return a value of a row as plain data. Any: as the data set made it."""
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else (_CARRIED, "int", str(value))
    if isinstance(value, Mapping):
        return {key: _carried(item, column) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_carried(item, column) for item in value])
    if isinstance(value, set | frozenset):
        return (_CARRIED, type(value).__name__, [_carried(item, column) for item in value])
    name = "Path" if isinstance(value, pathlib.PurePath) else type(value).__name__
    if name in _FROM_TEXT and not isinstance(value, int):
        return (_CARRIED, name, value.isoformat() if isinstance(value, datetime.date) else str(value))
    numpy, pillow = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        data = numpy.ascontiguousarray(value)
        return (_CARRIED, "array" if value.shape else "number", (value.dtype.str, list(value.shape), data.tobytes()))
    if pillow is not None and isinstance(value, pillow.Image):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return (_CARRIED, "image", file.getvalue())
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return value
    base = next((plain for plain in (str, bytes, int, float) if isinstance(value, plain)), None)
    if base is not None:
        return _carried(base(value), column)
    raise CodecError(
        f"column {column!r} of a row holds {type(value).__module__}.{type(value).__qualname__}",
        why="it travels to no other process, and rewards have one of their own",
        fix="keep plain data, arrays, images, dates or paths in the rows of a data set",
    )


def _holds(value: object) -> bool:
    """Tell whether anything in a value was carried."""
    if isinstance(value, dict):  # what mappings arrive as
        return any(map(_holds, value.values()))
    return isinstance(value, list | tuple) and (value[:1] == (_CARRIED,) or any(map(_holds, value)))


def _delivered(value: Any) -> Any:
    """Undo `_carried`. Any: as it was."""
    if isinstance(value, Mapping):
        return {key: _delivered(item) for key, item in value.items()}
    if isinstance(value, tuple) and value[:1] == (_CARRIED,):
        _, kind, content = value
        return _made(kind, content)
    if isinstance(value, list | tuple):
        return type(value)([_delivered(item) for item in value])
    return value


def _made(kind: str, content: Any) -> object:
    """Return what was carried under a kind. Any: as `_carried` made it."""
    if kind in _FROM_TEXT:
        return _FROM_TEXT[kind](content)
    if kind in ("set", "frozenset"):
        items = [_delivered(item) for item in content]
        return set(items) if kind == "set" else frozenset(items)
    if kind == "image":
        from PIL import Image

        return Image.open(io.BytesIO(content))
    import numpy

    dtype, shape, data = content
    array = numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()
    return array[()] if kind == "number" else array
