"""Programs that start engines on several ranks: where each rank is placed, and starts that cannot be.

Knows: what an engine and its process say after a start.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

import gc
from typing import Any

import psutil

from areal_conformance.benches.process import listening
from areal_conformance.oracles.train_objectives import OBJECTIVES
from areal_conformance.ranks.answers import SHAPES, error_of, placed, told
from areal_conformance.ranks.bench import RankBench


def refused_layout(bench: RankBench, layout: dict[str, int], *, model: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start with a layout that cannot be; then start with one that can, in the same processes."""
    folder = bench.model(**(model or {}))
    engine = bench.build()
    context = bench.rank_context()
    out: dict[str, Any] = {"error": error_of(lambda: engine.start(bench.spec(model=folder, layout=layout), context))}
    bench.share()
    engine.close()
    return out


def missing_model(bench: RankBench, layout: dict[str, int], *, bad: int) -> dict[str, Any]:
    """Start with a model folder that one rank cannot see; then start again with one all can see."""
    folder = bench.model()
    engine = bench.build()
    context = bench.rank_context()
    seen = bench.folder / "nowhere" if bench.rank == bad else folder
    spec = bench.spec(model=seen, layout=layout)
    out: dict[str, Any] = {"error": error_of(lambda: engine.start(spec, context))}
    bench.share()
    engine.close()
    bench.share()
    with bench.engine(model=folder, layout=layout) as engine:
        out["report"] = told(engine.train_step(bench.batch(SHAPES), OBJECTIVES["gain"]()))
    return out


def placement(bench: RankBench, layout: dict[str, int], *, model: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start, tell the place, close twice, and start again: the process is as free as before."""
    held = _held()
    folder = bench.model(**(model or {}))
    with bench.engine(model=folder, layout=layout) as engine:
        out = placed(bench)
        engine.train_step(bench.batch(SHAPES), OBJECTIVES["gain"]())
        out["listens"] = sorted({address for address, _ in listening()})
    engine.close()
    del engine
    gc.collect()
    out["left"] = [entry for entry in _held() if entry not in held]
    bench.share()
    with bench.engine(model=folder, layout=layout) as engine:
        out["again"] = placed(bench)
        out["report"] = told(engine.train_step(bench.batch(SHAPES), OBJECTIVES["gain"]()))
    if bench.rank == 0:
        with bench.by_itself(), bench.engine(model=folder):
            out["alone_placed"] = placed(bench)
    return out


def _held() -> list[str]:
    """Return the ports this process listens on, and its children."""
    ports = [f"port {port}" for _, port in listening()]
    return ports + [f"process {child.pid}" for child in psutil.Process().children()]
