"""Messages as frames: one msgpack header, then one raw frame per tensor. Nothing is ever unpickled.

Public, for schedulers.

Knows: which types travel, and how each becomes frames and comes back equal.
Does not know: sockets, requests or who is at the other end.

What travels: None, bool, 64-bit int, float, str, bytes, list, tuple, dict, frozenset, the attrs classes and
enums of `areal_core.contract`, `Batch`, every error of `contract.errors`, and strided tensors (which arrive on
the CPU). Read-only mappings arrive as dicts. Every other type is refused by name; subclasses are not guessed.

In the header every array is a node `[tag, ...]`, so a list and a tuple stay what they were. Tensor frames are
views of the tensor's memory: do not write to it until the message was sent. Torch is imported when the first
tensor is met.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any

import msgspec

from areal_core.contract.errors import ArealError, CodecError
from areal_worker import schema

Frame = bytes | memoryview
Node = Any  # msgpack's own mix of scalars, lists and dicts
Frames = list[Frame]
Left = list[Frame | None]  # None: a tensor has it

MAX_FRAMES = 65_536
"""Tensors in one message, plus one."""
MAX_HEADER_BYTES = 256 << 20
"""All of a message but its tensors: one byte of it may become an object of a hundred."""
MAX_MESSAGE_BYTES = 8 << 30
"""More than any batch; what is larger travels by a weight transport."""

_SCALARS = frozenset((type(None), bool, int, float, str, bytes))
"""They are the same as values and as nodes. Most of what a message holds is one, so whoever packs or unpacks several
items looks for itself: a call for each takes longer than all the rest."""
_KEYS = frozenset((bool, int, float, str, bytes))

# What the first entry of a node says the node is.
_FLAT_LIST, _FLAT_TUPLE, _LIST, _TUPLE, _FROZENSET, _OBJECT, _ENUM, _ERROR, _TENSOR, _BATCH = range(10)

_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder()


def encode(value: object) -> Frames:
    """Return the frames of a value; the first is the header, the others are tensors' memory.

    Raises:
        CodecError: a type that does not travel, named with its module; or a message above the bounds.
    """
    frames: Frames = [b""]
    try:
        frames[0] = _header_encoder.encode(_pack(value, frames))
    except (OverflowError, RecursionError, UnicodeEncodeError) as exc:
        raise CodecError("a value cannot be encoded", why=f"{type(exc).__name__}: {exc}") from exc
    _refuse_large(frames)
    return frames


def decode(frames: Sequence[Frame]) -> Any:
    """Return the value that `encode` turned into these frames. Any: the sender decides.

    Tensors share memory with writable, aligned frames and copy each other one once: they can always be written to.

    Raises:
        CodecError: the frames are not what `encode` makes; nothing else, whatever the bytes are.
    """
    try:
        _refuse_large(frames)
        return _unpack(_header_decoder.decode(frames[0]), list(frames))
    except CodecError:
        raise
    except Exception as exc:  # the bytes choose which constructor runs, and so which error it raises
        raise CodecError("a message cannot be decoded", why=f"{type(exc).__name__}: {str(exc)[:300]}") from exc


def _refuse_large(frames: Sequence[Frame]) -> None:
    sizes = [memoryview(frame).nbytes for frame in frames]
    if len(frames) > MAX_FRAMES or sizes[0] > MAX_HEADER_BYTES or sum(sizes) > MAX_MESSAGE_BYTES:
        raise CodecError(
            f"a message of {len(frames)} frames and {sum(sizes)} bytes, {sizes[0]} in its header, is too large",
            why=f"at most {MAX_FRAMES} frames, {MAX_MESSAGE_BYTES} bytes and {MAX_HEADER_BYTES} in the header travel",
            fix="send it in parts; weights travel by a weight transport",
        )


# ---------------------------------------------------------------- values to nodes


def _pack(value: Any, frames: Frames) -> Node:
    kind = type(value)
    if kind in _SCALARS:
        return value
    packer = _PACKERS.get(kind)
    if packer is not None:
        return packer(value, frames)
    known = schema.OBJECTS_BY_TYPE.get(kind)
    if known is not None:
        name, get = known
        return [_OBJECT, name, *[item if type(item) in _SCALARS else _pack(item, frames) for item in get(value)]]
    if kind in schema.ENUM_NAMES:
        return [_ENUM, schema.ENUM_NAMES[kind], value.value]
    if isinstance(value, ArealError):
        return [_ERROR, schema.error_name(kind), value.what, value.why, value.fix]
    return _pack_tensors(value, frames)


def _pack_sequence(value: list[Any] | tuple[Any, ...], frames: Frames) -> Node:
    flat, nested = (_FLAT_LIST, _LIST) if type(value) is list else (_FLAT_TUPLE, _TUPLE)
    if _SCALARS.issuperset(map(type, value)):
        return (flat, value)
    return [nested, *[_pack(item, frames) for item in value]]


def _pack_mapping(value: Any, frames: Frames) -> Node:
    if not _KEYS.issuperset(map(type, value)):
        wrong = next(key for key in value if type(key) not in _KEYS)
        raise _refuse(type(wrong), "the key of a mapping", "use str, int, float, bool or bytes as keys")
    return {key: item if type(item) in _SCALARS else _pack(item, frames) for key, item in value.items()}


_PACKERS: dict[type, Callable[[Any, Frames], Node]] = {
    list: _pack_sequence,
    tuple: _pack_sequence,
    dict: _pack_mapping,
    MappingProxyType: _pack_mapping,
    frozenset: lambda value, frames: [_FROZENSET, *[_pack(item, frames) for item in value]],
}


def _pack_tensors(value: Any, frames: Frames) -> Node:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from areal_worker import tensors

        frames.append(tensors.memory(value))
        return [_TENSOR, tensors.dtype_name(value), list(value.shape), len(frames) - 1]
    batches = sys.modules.get("areal_core.contract.batch")
    if batches is not None and type(value) is batches.Batch:
        return [_BATCH, _pack_mapping(value.flat(), frames)]
    raise _refuse(type(value), "a message", "send contract types, plain data or tensors")


def _refuse(kind: type, where: str, fix: str) -> CodecError:
    return CodecError(
        f"{kind.__module__}.{kind.__qualname__} does not travel",
        why=f"{where} holds one, and only types known on both sides are sent",
        fix=fix,
    )


# ---------------------------------------------------------------- nodes to values


def _unpack(node: Node, frames: Left) -> Any:
    kind = type(node)
    if kind is list:
        return _UNPACKERS[node[0]](node, frames)
    if kind is dict:
        return {key: item if type(item) in _SCALARS else _unpack(item, frames) for key, item in node.items()}
    if kind in _SCALARS:
        return node
    raise CodecError(f"a message holds {kind.__name__}, which no sender of ours writes")


def _flat(node: Node) -> Any:
    (_, items) = node
    if type(items) is not list or not _SCALARS.issuperset(map(type, items)):
        raise CodecError("a flat sequence holds something other than scalars")
    return items


def _items(node: Node, frames: Left) -> list[Any]:
    return [item if type(item) in _SCALARS else _unpack(item, frames) for item in node[1:]]


def _unpack_object(node: Node, frames: Left) -> Any:
    build, names = schema.OBJECTS_BY_NAME[node[1]]
    if len(node) != len(names) + 2:
        raise CodecError(f"{node[1]} has {len(names)} fields and {len(node) - 2} arrived")
    items = zip(names, node[2:], strict=True)
    return build(**{name: item if type(item) in _SCALARS else _unpack(item, frames) for name, item in items})


def _unpack_enum(node: Node, _frames: Left) -> Any:
    (_, name, value) = node
    return schema.ENUMS[name](value)


def _unpack_error(node: Node, _frames: Left) -> Any:
    (_, name, what, why, fix) = node
    if {type(what), type(why), type(fix)} != {str}:
        raise CodecError("an error's texts are not strings")
    return schema.ERRORS[name](what, why=why, fix=fix)


def _unpack_tensor(node: Node, frames: Left) -> Any:
    from areal_worker import tensors

    (_, dtype, shape, index) = node
    frame = frames[index] if type(index) is int and 0 < index < len(frames) else None
    if frame is None:
        raise CodecError(f"a tensor names frame {brief(index)} of {len(frames)}", why="it is none, or another tensor's")
    frames[index] = None
    return tensors.from_memory(frame, dtype, shape)


def _unpack_batch(node: Node, frames: Left) -> Any:
    from areal_core.contract.batch import Batch

    (_, columns) = node
    return Batch.from_flat(_unpack(columns, frames))


_UNPACKERS: dict[int, Callable[[Node, Left], Any]] = {
    _FLAT_LIST: lambda node, _: _flat(node),
    _FLAT_TUPLE: lambda node, _: tuple(_flat(node)),
    _LIST: _items,
    _TUPLE: lambda node, frames: tuple(_items(node, frames)),
    _FROZENSET: lambda node, frames: frozenset(_items(node, frames)),
    _OBJECT: _unpack_object,
    _ENUM: _unpack_enum,
    _ERROR: _unpack_error,
    _TENSOR: _unpack_tensor,
    _BATCH: _unpack_batch,
}
