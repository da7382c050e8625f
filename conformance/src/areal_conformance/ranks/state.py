"""Programs that save and load an exact state on several ranks, and on another number of them.

Knows: how to see whether a state came back.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file, save_file

from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, shard, told
from areal_conformance.ranks.bench import OPTIMIZER, RankBench
from areal_conformance.ranks.objectives import OBJECTIVES, Drawing
from areal_core.contract.train import TrainEngine

_SCHEDULE = attrs.evolve(OPTIMIZER, schedule="linear", warmup_steps=2, total_steps=10, min_lr_ratio=0.1)
"""Warm-up and decay, so that a step count that is lost shows in the learning rate."""


def exact(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Save after two steps; make two more; load into the same engine, then into a new one, and make them again."""
    first, second = bench.batch(SHAPES), bench.batch(SHAPES, seed=1)
    path = bench.folder / f"state-{_named(layout)}"
    out: dict[str, Any] = {}
    with bench.engine(layout=layout, optimizer=_SCHEDULE) as engine:
        mine, other = shard(bench, first, rows), shard(bench, second, rows)
        engine.version = 5
        _steps(engine, [mine, mine])
        engine.save_state(path)
        out["after_save"] = bench.share(path.exists())
        saved = bench.sent(engine)
        engine.version = 6
        out["expected"] = _steps(engine, [other, mine])
        end = bench.sent(engine)
        engine.load_state(path)
        out["version"] = engine.version
        out["loaded_gap"] = gap(saved, bench.sent(engine))
        out["same_engine"] = _steps(engine, [other, mine])
        out["same_gap"] = gap(end, bench.sent(engine))
    with bench.engine(layout=layout, optimizer=_SCHEDULE, seed=99) as engine:
        _steps(engine, [other])
        engine.load_state(path)
        out["new_version"] = engine.version
        out["new_engine"] = _steps(engine, [other, mine])
        out["new_gap"] = gap(end, bench.sent(engine))
    return out


def random_numbers(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Draw random numbers in losses; each rank is at another place of its own sequence when the state is saved."""
    path = bench.folder / f"random-{_named(layout)}"
    out: dict[str, Any] = {}
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        torch.rand(3 + 5 * bench.rank, device=bench.target.torch_type)
        engine.save_state(path)
        out["expected"] = _drawn(engine, mine)
        engine.load_state(path)
        out["same_engine"] = _drawn(engine, mine)
    with bench.engine(layout=layout, seed=99) as engine:
        engine.load_state(path)
        out["new_engine"] = _drawn(engine, mine)
    return out


def save_for_others(bench: RankBench, layout: dict[str, int], rows: Rows, *, path: str) -> dict[str, Any]:
    """Save after two steps, on all ranks; tell what the next two steps give. `saved` and `end` are files of weights."""
    with bench.engine(layout=layout, optimizer=_SCHEDULE) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.version = 11
        _steps(engine, [mine, mine])
        engine.save_state(Path(path))
        saved = bench.sent(engine)
        reports = _steps(engine, [mine, mine])
        end = bench.sent(engine)
    if bench.rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in saved.items()}, f"{path}.saved.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in end.items()}, f"{path}.end.safetensors")
    bench.share()
    return {"reports": reports}


def load_from_others(bench: RankBench, layout: dict[str, int], rows: Rows, *, path: str) -> dict[str, Any]:
    """Load what another number of ranks saved, and make the steps they made next."""
    out: dict[str, Any] = {}
    with bench.engine(layout=layout, optimizer=_SCHEDULE) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        _steps(engine, [mine])
        before = bench.sent(engine)
        out["error"] = error_of(lambda: engine.load_state(Path(path)))
        bench.share()
        out["version"] = engine.version
        loaded = bench.sent(engine)
        out["reports"] = _steps(engine, [mine, mine])
        end = bench.sent(engine)
    if bench.rank == 0:
        out["untouched_gap"] = gap(before, loaded)
        out["saved_gap"] = gap(load_file(f"{path}.saved.safetensors"), loaded)
        out["end_gap"] = gap(load_file(f"{path}.end.safetensors"), end)
    return out


def load_nothing(bench: RankBench, layout: dict[str, int], rows: Rows, *, torn: bool) -> dict[str, Any]:
    """Load a state that is missing for one rank, or, `torn`, one of whose files was cut short; then step."""
    good, bad = bench.folder / f"whole-{_named(layout)}", bench.folder / "missing"
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.version = 3
        engine.save_state(good)
        _steps(engine, [mine])
        engine.version = 4
        before = bench.sent(engine)
        out: dict[str, Any] = {"cut": ""}
        if torn and bench.rank == 0:
            out["cut"] = _cut_last(good)
        bench.share()
        path = bad if not torn and bench.rank == bench.world_size - 1 else good
        out["error"] = error_of(lambda: engine.load_state(path))
        bench.share()
        out["version"] = engine.version
        after = bench.sent(engine)
        out["gap"] = gap(before, after)
        out["step"] = _steps(engine, [mine])[0]
    return out


def _cut_last(folder: Path) -> str:
    """Cut the last of the largest files to half: where every rank wrote one, that of the last rank."""
    files = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: str(file))
    largest = max(file.stat().st_size for file in files)
    chosen = [file for file in files if file.stat().st_size > largest // 2][-1]
    with chosen.open("r+b") as handle:
        handle.truncate(chosen.stat().st_size // 2)
    return chosen.name


def _steps(engine: TrainEngine, shards: list[Any]) -> list[dict[str, Any]]:
    return [told(engine.train_step(batch, OBJECTIVES["gain"]())) for batch in shards]


def _drawn(engine: TrainEngine, batch: Any) -> list[float]:
    objective = Drawing()
    engine.train_step(batch, objective)
    engine.train_step(batch, objective)
    return objective.drawn


def _named(layout: dict[str, int]) -> str:
    return "".join(f"{letter}{degree}" for letter, degree in layout.items())
