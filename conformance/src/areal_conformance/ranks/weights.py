"""Programs that send and save weights from several ranks.

Knows: how to see what left the ranks, by two roads.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.train import read_folder
from areal_conformance.oracles.train_objectives import OBJECTIVES
from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, once, shard, told
from areal_conformance.ranks.bench import RankBench
from areal_core.contract.errors import StorageError
from areal_core.contract.weights import Receipt, WeightManifest
from areal_core.weights.tensors import fingerprint
from areal_torch.testing.memory_weights import MemorySink


class FailingSink(MemorySink):
    """A sink whose disk is full: at `begin`, at bucket number `at`, or at `finish`."""

    def __init__(self, at: str) -> None:
        super().__init__(bucket_bytes=1 << 14)
        self._at = at

    def begin(self, manifest: WeightManifest) -> None:
        """Announce, or fail."""
        self._fail("begin")
        super().begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Take a bucket, or fail."""
        self._fail(f"bucket {len(self.buckets)}")
        super().write(bucket)

    def finish(self) -> Receipt:
        """Finish, or fail."""
        self._fail("finish")
        return super().finish()

    def _fail(self, moment: str) -> None:
        if moment == self._at:
            raise StorageError(f"no room at {moment}", why="the suite made the disk full")


def sends(bench: RankBench, layout: dict[str, int], rows: Rows, *, model: dict[str, Any]) -> dict[str, Any]:
    """Send before and after two steps, in buckets of two sizes, and save; rank 0 compares with the folder it began as.

    The sends follow one another without a pause, so one that gives what an earlier one gave shows.
    """
    folder = bench.model(**model)
    batch = bench.batch(SHAPES)
    out: dict[str, Any] = {"rounds": []}
    held: list[dict[str, Tensor]] = []
    with bench.engine(model=folder, layout=layout) as engine:
        for number, bucket_bytes in enumerate((1 << 13, 1 << 30, 1 << 14)):
            if number:
                engine.train_step(shard(bench, batch, rows), OBJECTIVES["gain"]())
            sink = MemorySink(bucket_bytes=bucket_bytes)
            receipt = engine.send_weights(sink if bench.rank == 0 else None, number + 1)
            out["rounds"].append(_received(sink, receipt))
            held.append(sink.tensors)
            saved = bench.folder / f"{_named(layout)}-{_named(model)}-{number}"
            engine.save_weights(saved)
            out["rounds"][-1]["seen"] = sorted(file.name for file in saved.iterdir()) if saved.exists() else []
            bench.share()
    if bench.rank != 0:
        return out
    for number, tensors in enumerate(held):
        saved = bench.folder / f"{_named(layout)}-{_named(model)}-{number}"
        out["rounds"][number]["saved_gap"] = gap(tensors, read_folder(saved))
    out["left"] = sorted(file.name for file in bench.folder.iterdir() if not file.name[-1].isdigit())
    out["start_gap"] = gap(_as(bench.dtype, read_folder(folder)), held[0])
    out["frozen"] = [
        [name for name in tensors if fingerprint(tensors[name]) == fingerprint(before[name])]
        for before, tensors in pairwise(held)
    ]

    def alone() -> dict[str, Any]:
        with bench.engine(model=folder) as single:
            sink = MemorySink()
            return _received(sink, single.send_weights(sink, 1))

    out["alone"] = once(bench, f"sent {model}", alone)
    return out


def failing_sink(bench: RankBench, layout: dict[str, int], rows: Rows, *, moments: list[str]) -> list[dict[str, Any]]:
    """Send into sinks that fail, each at another moment, or that change a bit; after each send again and step."""
    batch = bench.batch(SHAPES)
    found = []
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, batch, rows)
        engine.train_step(mine, OBJECTIVES["gain"]())
        for at in moments:
            sink: MemorySink = MemorySink(spoil=_flip) if at == "spoiled" else FailingSink(at)
            error = error_of(partial(engine.send_weights, sink if bench.rank == 0 else None, 2))
            bench.share()
            again = MemorySink()
            received = _received(again, engine.send_weights(again if bench.rank == 0 else None, 3))
            step = told(engine.train_step(mine, OBJECTIVES["gain"]()))
            found.append({"error": error, "aborted": sink.aborted, "again": received, "step": step})
    return found


def saves_nowhere(bench: RankBench, layout: dict[str, int], rows: Rows, *, call: str) -> dict[str, Any]:
    """Save where nothing can be written; then step and save where it can."""
    batch = bench.batch(SHAPES)
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, batch, rows)
        blocked = bench.folder / "blocked"
        if bench.rank == 0:
            blocked.write_text("a file where a folder would have to be")
        bench.share()
        out: dict[str, Any] = {"error": error_of(lambda: getattr(engine, call)(blocked / "inner"))}
        bench.share()
        out["step"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
        good = bench.folder / f"good-{_named(layout)}-{call}"
        getattr(engine, call)(good)
        out["files"] = sorted(file.name for file in good.iterdir())
    return out


def _received(sink: MemorySink, receipt: Receipt | None) -> dict[str, Any]:
    return {
        "receipt": None if receipt is None else {"version": receipt.version, "bytes": receipt.num_bytes},
        "receipt_fingerprints": {} if receipt is None else dict(receipt.fingerprints),
        "fingerprints": {name: fingerprint(tensor) for name, tensor in sink.tensors.items()},
        "bytes": sum(tensor.nbytes for tensor in sink.tensors.values()),
        "shapes": {name: list(tensor.shape) for name, tensor in sink.tensors.items()},
        "buckets": len(sink.buckets),
        "largest": max((sum(sink.tensors[name].nbytes for name in bucket) for bucket in sink.buckets), default=0),
        "version": None if sink.manifest is None else sink.manifest.version,
        "tied": {} if sink.manifest is None else dict(sink.manifest.tied),
    }


def _flip(name: str, tensor: Tensor) -> Tensor:
    return tensor.neg() if name.endswith("norm.weight") else tensor


def _as(dtype: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}


def _named(values: Mapping[str, Any]) -> str:
    return "".join(f"{key}{value}" for key, value in values.items()) or "default"
