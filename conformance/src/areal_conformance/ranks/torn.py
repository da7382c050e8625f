"""A program that spoils each file of a state in turn, and asks every rank to load it.

Knows: ways a file can be spoiled.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, shard, told
from areal_conformance.ranks.bench import RankBench
from areal_conformance.ranks.objectives import OBJECTIVES

WAYS = ("cut", "emptied", "overwritten", "removed")


def load_each_torn(bench: RankBench, layout: dict[str, int], rows: Rows) -> list[dict[str, Any]]:
    """Load a state once for every file spoiled in every way; after each failure tell weights, version and next step.

    The engine is returned to its own state, saved before, after each next step. The first entry is of no failure.
    """
    name = "".join(f"{letter}{degree}" for letter, degree in layout.items())
    good, own = bench.folder / f"good-{name}", bench.folder / f"own-{name}"
    out: list[dict[str, Any]] = []
    with bench.engine(layout=layout, model=bench.model(hidden=32)) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)

        def step() -> dict[str, Any]:
            return told(engine.train_step(mine, OBJECTIVES["gain"]()))

        engine.version = 3
        engine.save_state(good)
        step()
        engine.version = 4
        engine.save_state(own)
        held = bench.sent(engine)
        draw = _drawn(bench)
        out.append({"file": "", "way": "", "step": step(), "error": ["", "", ""], "version": 4, "gap": [0.0, ""]})
        end = bench.sent(engine)
        out[0] |= {"drawn": draw, "end_gap": [0.0, ""]}
        files = sorted(str(file.relative_to(good)) for file in good.rglob("*") if file.is_file())
        for number, file in enumerate(files):
            for way in WAYS:
                engine.load_state(own)
                path = bench.folder / f"torn-{name}-{number}-{way}"
                if bench.rank == 0:
                    shutil.copytree(good, path)
                    spoil(path / file, way)
                bench.share()
                told_here: dict[str, Any] = {"file": file, "way": way}
                told_here["error"] = error_of(lambda path=path: engine.load_state(path))  # type: ignore[misc]
                bench.share()
                told_here["version"] = engine.version
                told_here["gap"] = gap(held, bench.sent(engine))
                told_here["drawn"] = _drawn(bench)
                told_here["step"] = step()
                told_here["end_gap"] = gap(end, bench.sent(engine))
                out.append(told_here)
    return out


def spoil(file: Path, way: str) -> None:
    """Spoil a file in one of `WAYS`."""
    data = file.read_bytes()
    match way:
        case "cut":
            file.write_bytes(data[: len(data) * 2 // 3])
        case "emptied":
            file.write_bytes(b"")
        case "overwritten":
            file.write_bytes(b"\xff" * len(data))
        case _:
            file.unlink()


def _drawn(bench: RankBench) -> float:
    return float(torch.rand(1, device=bench.target.torch_type))
