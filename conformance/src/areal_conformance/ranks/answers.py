"""What programs on several ranks give back: reports, shards, errors and gaps, as plain json.

Knows: how one rank's part is cut out of a batch, and how what it saw is told.
Does not know: programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.train import Shape
from areal_conformance.ranks.bench import RankBench
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError
from areal_core.contract.train import TrainReport

Rows = Sequence[Sequence[int]]
"""Which sequences of the whole batch belong to which shard."""


SHAPES: list[Shape] = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]
"""Eight sequences of 2 to 14 tokens."""


def told(report: TrainReport) -> dict[str, Any]:
    """Return a report as json; what is not finite as text, and without its seconds."""
    return {
        "loss": _number(report.loss),
        "grad_norm": _number(report.grad_norm),
        "lr": report.lr,
        "stepped": report.stepped,
        "num_microbatches": report.num_microbatches,
        "num_tokens": report.num_tokens,
        "metrics": {name: [_number(entry.value), entry.weight] for name, entry in sorted(report.metrics.items())},
    }


def placed(bench: RankBench) -> dict[str, Any]:
    """Return what the engine started last says about itself."""
    assert bench.info is not None
    return {
        "data_rank": bench.info.data_rank,
        "data_size": bench.info.data_size,
        "num_parameters": bench.info.num_parameters,
        "context_length": bench.info.context_length,
    }


def shard(bench: RankBench, batch: Batch, rows: Rows) -> Batch:
    """Return this rank's shard of a batch, as the engine's data rank says."""
    return batch.select(mine_of(bench, rows))


def error_of(action: Callable[[], Any]) -> list[str]:
    """Return the class of the error an action raises, whether it is one of areal's, and what it says."""
    try:
        action()
    except ArealError as error:
        return [type(error).__name__, "areal", str(error)]
    except Exception as error:  # the checks judge which errors are right
        return [type(error).__name__, "other", str(error)]
    return ["", "", ""]


def gap(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest difference between two sets of weights, and where it is; infinite if their names differ."""
    odd = sorted(set(expected) ^ set(actual))
    if odd:
        return 1e30, f"{odd[0]} is on one side only"
    worst, where = 0.0, ""
    for name, tensor in expected.items():
        other = actual[name]
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            return 1e30, f"{name} is {other.dtype} {list(other.shape)} instead of {tensor.dtype} {list(tensor.shape)}"
        difference = (tensor.float() - other.float()).abs()
        largest = float(torch.nan_to_num(difference, nan=1e30).max()) if difference.numel() else 0.0
        if largest > worst:
            worst, where = largest, name
    return worst, where


def once(bench: RankBench, key: str, make: Callable[[], Any]) -> Any:
    """Return what one rank by itself gives, computed once per process and kept. Any: the maker's."""
    if key not in bench.kept:
        with bench.by_itself():
            bench.kept[key] = make()
    return bench.kept[key]


def same_columns(given: Batch, returned: Batch, added: Sequence[str]) -> str:
    """Return what differs between a shard and the one returned, beside the columns added; nothing if right."""
    left, right = given.flat(), returned.flat()
    for name, column in left.items():
        if name.removeprefix("tokens/") in added:
            continue  # one of that name was given and is replaced
        if name not in right or right[name].dtype != column.dtype or not torch.equal(column, right[name].cpu()):
            return f"{name} is not the one given"
    for name in added:
        found = right.get(f"tokens/{name}")
        if found is None or found.dtype != torch.float32 or tuple(found.shape) != (given.num_tokens,):
            return f"{name} is {None if found is None else (found.dtype, tuple(found.shape))}"
    return ""


def mine_of(bench: RankBench, rows: Rows) -> list[int]:
    """Return the sequences of this rank's shard."""
    assert bench.info is not None
    size = bench.info.data_size
    if size == 1:
        return union_of(rows)
    return [row for number, part in enumerate(rows) if number % size == bench.info.data_rank for row in part]


def union_of(rows: Rows) -> list[int]:
    """Return the sequences of all shards."""
    return sorted(row for part in rows for row in part)


def _number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
