"""One of everything that travels between a controller and its workers, and whether two of a kind are the same.

Knows: plain data, contract types with no field left at its default, tensors of every layout.
Does not know: any codec.
"""

from __future__ import annotations

import itertools
import math
import struct
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import UnionType
from typing import Any

import attrs

from areal_core.contract import data, errors, inference, scheduler, train, weights, workflow
from areal_core.contract.errors import ArealError

ROUND_SIZES = tuple(times * size + more for size in (4096, 1 << 16) for times in (1, 2, 4, 5) for more in (-1, 0, 1))
"""Bytes around whole numbers of pages and of the pieces that large messages are cut into."""


def plain_values() -> dict[str, Any]:
    """Return plain data by name. Any: that is the point."""
    return {
        "none": None,
        "booleans": [True, False],
        "integers": [0, 1, -1, 255, 256, 2**31, -(2**31), 2**63 - 1, -(2**63)],
        "floats": [0.0, -0.0, 1.5, 1e-300, math.pi, math.inf, -math.inf, math.nan],
        "texts": ["", "a", "\u00e9\u4e2d\U0001f600", "line\nline\x00end", "x" * 70_000],
        "bytes": [b"", b"\x00\xff\x80", bytes(range(256)) * 300],
        "bytes of round sizes": [bytes([number]) * size for number, size in enumerate(ROUND_SIZES)],
        "empty containers": [[], (), {}, frozenset()],
        "nested": {"a": [1, (2, [3, (4.0, "5")]), {"b": (None, True)}], "c": {"d": {"e": []}}},
        "tuple, not list": (1, 2),
        "list, not tuple": [1, 2],
        "one, not true": [1, True, 0, False, 1.0],
        "keys": {1: "one", "1": "text", b"1": "bytes", 2.5: "float"},
        "sets": frozenset({1, 2, 3}),
        "many": list(range(5000)),
    }


def contract_values() -> dict[str, Any]:
    """Return one value of every contract type that holds no tensor, by name; no field is at its default."""
    modules, numbers = (inference, scheduler, train, weights, workflow), itertools.count(3)
    own = (kind for module in modules for kind in vars(module).values() if attrs.has(kind))
    kinds = [kind for kind in dict.fromkeys(own) if kind.__module__ != data.__name__]
    found = [_filled(kind, numbers) for kind in kinds]
    found += [
        weights.TensorSpec(name="scalar", shape=(), dtype="bfloat16"),
        attrs.evolve(_filled(train.TrainReport, numbers), grad_norm=math.inf),
        workflow.RewardResult(value=None, status="timeout", components={"c": 0.5}, detail="d", seconds=1.5),
    ]
    named = {f"{type(value).__name__} {number}": value for number, value in enumerate(found)}
    enums = (data.StopReason, inference.PauseMode, train.Output, train.Head, scheduler.WorkerState, scheduler.Share)
    return {**named, **{kind.__name__: list(kind) for kind in enums}}


def every_error() -> list[ArealError]:
    """Return one instance of every error of the contract, with texts that are easy to lose."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ArealError)]
    return [
        kind(f"what of {kind.__name__}: caf\u00e9", why="line one\nline two", fix=f"run `{number}`")
        for number, kind in enumerate(kinds)
    ]


def tensor_values() -> dict[str, Any]:
    """Return tensors and what holds them, by name. Any: torch is imported here only."""
    import torch

    from areal_core.contract.batch import Batch

    generator = torch.Generator().manual_seed(7)
    base = torch.randn(6, 5, generator=generator)
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
    values: dict[str, Any] = {str(dtype): (base * 50).abs().to(dtype) for dtype in dtypes}
    values |= {
        "bool": base > 0,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "expanded": torch.arange(3.0)[:, None].expand(3, 4),
        "conjugate": torch.view_as_complex(base[:, :4].reshape(6, 2, 2).contiguous()).conj(),
        "of a conjugate": torch.view_as_complex(base[:, :2].contiguous()).conj().imag,
        "not finite": torch.tensor([math.inf, -math.inf, math.nan, -0.0]),
        "large": torch.arange(1_200_000, dtype=torch.int32),
        "of round sizes": [torch.full((size,), number, dtype=torch.uint8) for number, size in enumerate(ROUND_SIZES)],
        "several": [base, {"again": base[1:]}, (base.to(torch.bfloat16), 3)],
        "batch": Batch.of(
            {"input_ids": torch.arange(9), "logprobs": torch.randn(9, generator=generator)},
            {"rewards": torch.tensor([1.0, -2.0, 0.0])},
            torch.tensor([4, 2, 3]),
        ),
        "generation": inference.Generation(
            output_ids=(4, 7),
            logprobs=(-0.5, -1.0),
            version_spans=(inference.VersionSpan(start=0, stop=2, version=1),),
            stop_reason="stop",
            token_extras={"routed_experts": torch.arange(8, dtype=torch.int32).reshape(2, 2, 2)},
        ),
        "episode": data.Episode(trajectories=(_trajectory(),), task_id="t/0/3", group_id="g", metrics={"m": 0.5}),  # type: ignore[arg-type]
    }
    return values


def difference(sent: Any, given: Any, path: str = "value") -> str | None:
    """Return where two values differ, None if they are the same in type and bits. Any: everything is compared."""
    if isinstance(sent, Mapping):
        return _of_mappings(sent, given, path)
    if type(sent) is not type(given):
        return f"{path} was {type(sent).__name__} {sent!r:.60}, is {type(given).__name__} {given!r:.60}"
    if isinstance(sent, float):
        return None if struct.pack("<d", sent) == struct.pack("<d", given) else f"{path} was {sent!r}, is {given!r}"
    if isinstance(sent, list | tuple):
        if len(sent) != len(given):
            return f"{path} had {len(sent)} entries, has {len(given)}"
        pairs = enumerate(zip(sent, given, strict=True))
        return _first(difference(one, other, f"{path}[{number}]") for number, (one, other) in pairs)
    if hasattr(sent, "flat"):
        return difference(sent.flat(), given.flat(), path)
    if attrs.has(type(sent)):
        names = [field.name for field in attrs.fields(type(sent))]
        return _first(difference(getattr(sent, name), getattr(given, name), f"{path}.{name}") for name in names)
    if hasattr(sent, "untyped_storage"):
        return _of_tensors(sent, given, path)
    return None if sent == given else f"{path} was {sent!r:.60}, is {given!r:.60}"


def _filled(kind: type[Any], numbers: Iterator[int]) -> Any:
    """Return an instance of a contract type, each of its fields filled by its type. Any: of that type."""
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: _of_type(hints[field.name], field, numbers) for field in attrs.fields(kind)})


def _of_type(wanted: Any, field: Any, numbers: Iterator[int]) -> Any:  # Any: a type, an attrs field, a value
    """Return a value of a field's type, or of a part of it, unlike its default and all others."""
    kind, parts = typing.get_origin(wanted) or getattr(wanted, "__supertype__", wanted), typing.get_args(wanted)
    if kind is UnionType:
        return _of_type(parts[0], field, numbers)
    if kind in (tuple, Sequence):
        both = (parts[0], parts[0] if parts[-1] is Ellipsis else parts[-1])
        return tuple(_of_type(part, field, numbers) for part in both)
    if kind is Mapping:
        return {f"a key of {field.name}": _of_type(parts[1], field, numbers)}
    if kind is Any:
        return [next(numbers), None, {"deep": (0.5, "text")}]
    if attrs.has(kind):
        return _filled(kind, numbers)
    if issubclass(kind, Enum):
        return next(member for member in kind if member != field.default)
    if kind is bool:
        return field.default is not True
    return f"{field.name} {next(numbers)}" if kind is str else kind(next(numbers) + 2**40 + 0.25)


def _of_mappings(sent: Mapping[Any, Any], given: Any, path: str) -> str | None:
    if not isinstance(given, Mapping):
        return f"{path} was a mapping, is {type(given).__name__}"
    before, after = [(type(key), key) for key in sent], [(type(key), key) for key in given]
    if sorted(map(repr, before)) != sorted(map(repr, after)):
        return f"{path} had keys {list(sent)!r:.80}, has {list(given)!r:.80}"
    return _first(difference(value, given[key], f"{path}[{key!r}]") for key, value in sent.items())


def _of_tensors(sent: Any, given: Any, path: str) -> str | None:
    import torch

    if (sent.dtype, tuple(sent.shape)) != (given.dtype, tuple(given.shape)):
        return f"{path} was {sent.dtype} {tuple(sent.shape)}, is {given.dtype} {tuple(given.shape)}"
    plain = (tensor.cpu().resolve_conj().resolve_neg() for tensor in (sent, given))
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in plain)
    wrong = int((one != other).sum())
    return None if not wrong else f"{path} differs in {wrong} of {len(one)} bytes"


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _trajectory() -> data.Trajectory:
    import torch

    return data.Trajectory(
        input_ids=torch.tensor([5, 9, 4]),
        loss_mask=torch.tensor([False, False, True]),
        logprobs=torch.tensor([0.0, 0.0, -0.7]),
        versions=torch.tensor([-1, -1, 3], dtype=torch.int32),
        reward=-1.5,
        stop_reason="stop",
        token_extras={"k": torch.tensor([0, 0, 1])},
        sequence_extras={"image": torch.ones(2, 2)},
    )
