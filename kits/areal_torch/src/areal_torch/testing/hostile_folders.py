"""Model folders that are not what they should be: one good folder, made bad in a hundred ways.

Knows: what can be wrong with the files of a folder, and how to hold a call to time and memory meanwhile.
Does not know: who reads the folder, or what is to be said about it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

Spoil = Callable[[Path], object]
"""Makes a good folder bad."""

DEEP = 100_000
"""Brackets around brackets: more than any parser goes down into."""
INDEX = "model.safetensors.index.json"
_GIB = 1 << 30
_KEYS = (
    *("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("layer_types", "rope_parameters", "hidden_act", "tie_word_embeddings", "eos_token_id", "text_config"),
)
_VALUES: Mapping[str, object] = {
    "a word": "many",
    "a list": [],
    "an object": {"odd": [1]},
    "negative": -1,
    "nan": float("nan"),
    "huge": 10**30,
    "true": True,
}


class TooLate(BaseException):
    """No error a reader could take for one of its own."""


def hostile_folders() -> dict[str, Spoil]:
    """Return every way to spoil a folder of `make_tiny_model`, by a name for it. Some leave it fit for use."""
    ways: dict[str, Spoil] = {}
    for key in _KEYS:
        for what, value in _VALUES.items():
            ways[f"config.json: {key} is {what}"] = partial(_set, key=key, value=value)
        ways[f"config.json: no {key}"] = partial(_set, key=key, value=_set)
    ways["config.json: architectures is a number"] = partial(_set, key="architectures", value=5)
    ways["config.json: architectures holds numbers"] = partial(_set, key="architectures", value=[5, None, ["x"]])
    ways["config.json: text_config is a list"] = partial(_set, key="text_config", value=[1])
    ways["config.json: a quantization nobody knows"] = partial(_set, key="quantization_config", value={"a": 1})
    ways["config.json: code of its own"] = partial(_set, key="auto_map", value={"AutoConfig": "evil.Config"})
    ways["config.json: more layers than there are"] = _many_layers
    ways["config.json: a wider model"] = partial(_set, key="hidden_size", value=2**24)
    ways["config.json: a vocabulary of billions"] = partial(_set, key="vocab_size", value=2**31 - 1)
    for file in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json", INDEX):
        for what, spoil in hostile_files().items():
            ways[f"{file}: {what}"] = partial(_at, file=file, spoil=spoil)
    for what, header in _headers().items():
        ways[f"model.safetensors: {what}"] = partial(_header, change=header)
    for what, content in _indexes().items():
        ways[f"{INDEX}: {what}"] = partial(_shard, index=content)
    ways["a second file with the same tensors"] = lambda folder: shutil.copy(
        folder / "model.safetensors", folder / "other.safetensors"
    )
    ways["a folder called extra.safetensors"] = lambda folder: (folder / "extra.safetensors").mkdir()
    ways["a pipe called extra.safetensors"] = lambda folder: os.mkfifo(folder / "extra.safetensors")
    return ways


@contextmanager
def bounded(*, seconds: float = 300.0, memory: int = 2 * _GIB) -> Iterator[None]:
    """Hold what runs inside, in the main thread, to a time and to so much more memory than is taken now.

    Raises:
        TooLate: it took longer; a read that never ends is interrupted.
        MemoryError: it wanted more, in whatever words the code that asked has for that.
    """

    def late(*_: object) -> None:
        raise TooLate(f"no answer within {seconds} s")

    before, limits = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + memory, limits[1]))
    others = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def _set(folder: Path, *, key: str, value: object) -> None:
    """Give an entry of config.json another value; this function itself stands for none."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config[key] = value
    if value is _set:
        del config[key]
    file.write_text(json.dumps(config))


def _many_layers(folder: Path) -> None:
    _set(folder, key="num_hidden_layers", value=10**9)
    _set(folder, key="layer_types", value=_set)


def hostile_files() -> dict[str, Spoil]:
    """Return what any file can be instead of itself, by a name for it."""

    def anew(make: Callable[[Path], object]) -> Spoil:
        def spoil(file: Path) -> None:
            file.unlink(missing_ok=True)
            make(file)

        return spoil

    def write(content: bytes) -> Spoil:
        return anew(lambda file: file.write_bytes(content))

    def sparse(file: Path) -> None:
        with file.open("wb") as stream:
            stream.truncate(_GIB // 4)

    return {
        "not there": anew(lambda file: None),
        "empty": write(b""),
        "no json": write(b"\x80\x81\xff\xfe garbage"),
        "a list": write(b"[1, 2]"),
        "deep": write(b'{"a": ' + b"[" * DEEP),
        "deep to the end": write(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"),
        "with NUL bytes": write(b'{"a": "\0\0"}'),
        "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]) if file.exists() else None,
        "zeros, a quarter of a GiB": anew(sparse),
        "a folder": anew(lambda file: file.mkdir()),
        "a link to nothing": anew(lambda file: file.symlink_to("nowhere")),
        "a link to itself": anew(lambda file: file.symlink_to(file.name)),
        "a link out of the folder": anew(lambda file: file.symlink_to("/etc/passwd")),
        "a link to /dev/zero": anew(lambda file: file.symlink_to("/dev/zero")),
        "a pipe": anew(os.mkfifo),
    }


def _at(folder: Path, *, file: str, spoil: Spoil) -> None:
    spoil(folder / file)


def _headers() -> dict[str, Callable[[dict[str, Any]], object]]:
    """Return changes to the first tensor's header. Any: json."""
    entries: dict[str, Mapping[str, object]] = {
        "data_offsets of none": {"data_offsets": []},
        "data_offsets backwards": {"data_offsets": [64, 0]},
        "data_offsets of words": {"data_offsets": ["a", "b"]},
        "data_offsets beyond the end": {"data_offsets": [0, 10**30]},
        "data_offsets before the beginning": {"data_offsets": [-64, 0]},
        "a shape of less than nothing": {"shape": [-4, 8]},
        "a shape that is a word": {"shape": "ab"},
        "a shape that is a number": {"shape": 3},
        "a shape of fractions": {"shape": [1.5, 2.0]},
        "a huge shape": {"shape": [10**30, 10**30]},
        "a shape of a thousand lengths": {"shape": [2] * 1000},
        "no lengths": {"shape": []},
        "lengths the other way round": {"shape": [32, 128]},
        "a dtype nobody knows": {"dtype": "F99"},
        "a dtype that is a number": {"dtype": 5},
        "one of whole numbers": {"dtype": "I32"},
    }

    def change(entry: Mapping[str, object], header: dict[str, Any]) -> None:
        header[min(set(header) - {"__metadata__"})].update(entry)

    return {what: partial(change, entry) for what, entry in entries.items()} | {
        "a tensor that is a list": lambda header: header.update({min(set(header) - {"__metadata__"}): [1]}),
        "no tensors": lambda header: header.clear(),
        "a tensor of another name": lambda header: header.update(odd=header.pop(min(set(header) - {"__metadata__"}))),
        "a tensor too many": lambda header: header.update(odd={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    }


def _header(folder: Path, *, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def _indexes() -> dict[str, object]:
    return {
        "names a file outside": {"weight_map": {"model.norm.weight": "../outside.safetensors"}},
        "names /etc/passwd": {"weight_map": {"model.norm.weight": "/etc/passwd"}},
        "names numbers": {"weight_map": {"model.norm.weight": 5}},
        "has a list": {"weight_map": [1]},
        "has no map": {},
        "names a file that is not there": {"weight_map": {"model.norm.weight": "gone.safetensors"}},
    }


def _shard(folder: Path, *, index: object) -> None:
    """Let the weights be found by an index alone."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
