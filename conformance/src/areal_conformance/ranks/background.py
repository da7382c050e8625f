"""Programs in which a state is written while several ranks go on.

Knows: what the ranks do between `begin_state` and `finish_state`.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, shard, told
from areal_conformance.ranks.bench import RankBench
from areal_conformance.ranks.faults import full_disk
from areal_conformance.ranks.objectives import OBJECTIVES

CLAIM = "checkpoint.background"


def exact(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Begin a state, make a step, finish; load it into a new engine and make the step again."""
    path = bench.folder / f"begun-{'-'.join(layout)}"
    out: dict[str, Any] = {}
    with bench.engine(CLAIM, layout=layout) as engine:
        able: Any = engine  # Any: an engine with the optional methods
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.train_step(mine, OBJECTIVES["gain"]())
        engine.version = 5
        saved = bench.sent(engine)
        able.begin_state(path)
        engine.version = 6
        out["expected"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
        out["early"] = bench.share(path.exists())
        able.finish_state()
        out["late"] = bench.share(path.exists())
        end = bench.sent(engine)
    with bench.engine(CLAIM, layout=layout, seed=99) as engine:
        engine.load_state(path)
        out["version"] = engine.version
        out["loaded_gap"] = gap(saved, bench.sent(engine))
        out["step"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
        out["end_gap"] = gap(end, bench.sent(engine))
    return out


def disk_full(bench: RankBench, layout: dict[str, int], rows: Rows, *, victim: int) -> dict[str, Any]:
    """Write a state; begin another with a disk that is full for one rank; then load what is there."""
    path = bench.folder / f"begun-{victim}-{'-'.join(layout)}" / "saved"
    path.parent.mkdir(exist_ok=True)
    with bench.engine(CLAIM, layout=layout) as engine:
        able: Any = engine  # Any: an engine with the optional methods
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.version = 7
        engine.train_step(mine, OBJECTIVES["gain"]())
        engine.save_state(path)
        saved = bench.sent(engine)
        engine.version = 8

        def begin_and_finish() -> None:
            able.begin_state(path)
            out["between"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
            able.finish_state()

        out: dict[str, Any] = {}
        with full_disk(bench.rank == victim):
            out["error"] = error_of(begin_and_finish)
        bench.share()
        out["left"] = sorted(file.name for file in path.parent.iterdir() if file.name != path.name)
        engine.load_state(path)
        out["version"] = engine.version
        out["gap"] = gap(saved, bench.sent(engine))
        out["step"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
        able.begin_state(path)
        able.finish_state()
        engine.load_state(path)
    return out
