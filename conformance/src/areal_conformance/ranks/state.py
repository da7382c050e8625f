"""Programs that save and load an exact state on several ranks, and on another number; spoiled; in the background.

Knows: how to see whether a state came back, and ways a file can be spoiled.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file, save_file

from areal_conformance.oracles.train_objectives import OBJECTIVES, DrawingGain
from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, shard, told
from areal_conformance.ranks.bench import OPTIMIZER, RankBench
from areal_conformance.ranks.faults import full_disk
from areal_conformance.ranks.layouts import named
from areal_core.contract.train import Output, TrainEngine

_CLAIM = "checkpoint.background"
_LOGPROBS = frozenset({Output.LOGPROBS})
_PATIENCE_S, _LOOK_S = 10.0, 0.01
_WAYS = ("cut", "emptied", "overwritten", "removed")
_SCHEDULE = attrs.evolve(OPTIMIZER, schedule="linear", warmup_steps=2, total_steps=10, min_lr_ratio=0.1)
"""Warm-up and decay, so that a step count that is lost shows in the learning rate."""


def exact(
    bench: RankBench,
    layout: dict[str, int],
    rows: Rows,
    *,
    model: dict[str, Any] | None = None,
    variant: str = "",
) -> dict[str, Any]:
    """Save after two steps; make two more; load into the same engine, then into a new one, and make them again.

    Both have scored just before: what a pass leaves behind must not be taken for what is loaded.
    """
    with bench.varied(variant):
        return _exact(bench, layout, rows, bench.model(**(model or {})))


def _exact(bench: RankBench, layout: dict[str, int], rows: Rows, folder: Path) -> dict[str, Any]:
    first, second = bench.batch(SHAPES), bench.batch(SHAPES, seed=1)
    path = bench.folder / f"state-{named(layout)}"
    out: dict[str, Any] = {}
    with bench.engine(model=folder, layout=layout, optimizer=_SCHEDULE) as engine:
        mine, other = shard(bench, first, rows), shard(bench, second, rows)
        engine.version = 5
        _steps(engine, [mine, mine])
        engine.save_state(path)
        out["after_save"] = bench.share(path.exists())
        saved = bench.sent(engine)
        engine.version = 6
        out["expected"] = _steps(engine, [other, mine])
        end = bench.sent(engine)
        engine.forward(other, _LOGPROBS)
        engine.load_state(path)
        out["version"] = engine.version
        out["loaded_gap"] = gap(saved, bench.sent(engine))
        out["same_engine"] = _steps(engine, [other, mine])
        out["same_gap"] = gap(end, bench.sent(engine))
    with bench.engine(model=folder, layout=layout, optimizer=_SCHEDULE, seed=99) as engine:
        _steps(engine, [other])
        engine.forward(other, _LOGPROBS)
        engine.load_state(path)
        out["new_version"] = engine.version
        out["new_engine"] = _steps(engine, [other, mine])
        out["new_gap"] = gap(end, bench.sent(engine))
    return out


def random_numbers(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Draw random numbers in losses; each rank is at another place of its own sequence when the state is saved."""
    path = bench.folder / f"random-{named(layout)}"
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


def save_for_others(
    bench: RankBench, layout: dict[str, int], rows: Rows, *, path: str, model: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Save after two steps, on all ranks; tell what the next two steps give. `saved` and `end` are files of weights."""
    with bench.engine(model=bench.model(**(model or {})), layout=layout, optimizer=_SCHEDULE) as engine:
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


def load_from_others(
    bench: RankBench, layout: dict[str, int], rows: Rows, *, path: str, model: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Load what another number of ranks saved, and make the steps they made next."""
    out: dict[str, Any] = {}
    with bench.engine(model=bench.model(**(model or {})), layout=layout, optimizer=_SCHEDULE) as engine:
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
    good, bad = bench.folder / f"whole-{named(layout)}", bench.folder / "missing"
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


def load_each_torn(bench: RankBench, layout: dict[str, int], rows: Rows) -> list[dict[str, Any]]:
    """Load a state once for every file spoiled in every way; after each failure tell weights, version and next step.

    The engine is returned to its own state, saved before, after each next step. The first entry is of no failure.
    """
    name = named(layout)
    good, own = bench.folder / f"good-{name}", bench.folder / f"own-{name}"
    out: list[dict[str, Any]] = []
    with bench.engine(layout=layout, model=bench.model(hidden=32)) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.version = 3
        engine.save_state(good)
        _steps(engine, [mine])
        engine.version = 4
        engine.save_state(own)
        held = bench.sent(engine)

        def told_here(file: str, way: str, error: list[str]) -> None:
            entry: dict[str, Any] = {"file": file, "way": way, "error": error, "version": engine.version}
            entry |= {"gap": gap(held, bench.sent(engine)), "drawn": _draw(bench)}
            entry |= {"step": _steps(engine, [mine])[0], "end": bench.sent(engine)}
            entry["end_gap"] = gap((out or [entry])[0]["end"], entry["end"])
            out.append(entry)

        told_here("", "", ["", "", ""])
        files = sorted(str(file.relative_to(good)) for file in good.rglob("*") if file.is_file())
        for (number, file), way in itertools.product(enumerate(files), _WAYS):
            engine.load_state(own)
            path = bench.folder / f"torn-{name}-{number}-{way}"
            if bench.rank == 0:
                shutil.copytree(good, path)
                spoil(path / file, way)
            bench.share()
            error = error_of(lambda path=path: engine.load_state(path))  # type: ignore[misc]
            bench.share()
            told_here(file, way, error)
    for entry in out:
        del entry["end"]
    return out


def background(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Begin a state, make a step, finish; load it into a new engine and make the step again."""
    path = bench.folder / f"begun-{'-'.join(layout)}"
    out: dict[str, Any] = {}
    with bench.engine(_CLAIM, layout=layout) as able:
        engine: Any = able  # Any: an engine with the optional methods
        mine = shard(bench, bench.batch(SHAPES), rows)
        _steps(engine, [mine])
        engine.version = 5
        saved = bench.sent(engine)
        engine.begin_state(path)
        engine.version = 6
        out["expected"] = _steps(engine, [mine])[0]
        out["early"] = bench.share(path.exists())
        engine.finish_state()
        out["late"] = bench.share(path.exists())
        end = bench.sent(engine)
    with bench.engine(_CLAIM, layout=layout, seed=99) as engine:
        engine.load_state(path)
        out["version"] = engine.version
        out["loaded_gap"] = gap(saved, bench.sent(engine))
        out["step"] = _steps(engine, [mine])[0]
        out["end_gap"] = gap(end, bench.sent(engine))
    return out


def background_full(bench: RankBench, layout: dict[str, int], rows: Rows, *, victim: int) -> dict[str, Any]:
    """Write a state; begin another with a disk that is full for one rank; then load what is there."""
    path = bench.folder / f"begun-{victim}-{'-'.join(layout)}" / "saved"
    path.parent.mkdir(exist_ok=True)
    with bench.engine(_CLAIM, layout=layout) as able:
        engine: Any = able  # Any: an engine with the optional methods
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.version = 7
        _steps(engine, [mine])
        engine.save_state(path)
        saved = bench.sent(engine)
        engine.version = 8

        def begin_and_finish() -> None:
            engine.begin_state(path)
            out["between"] = _steps(engine, [mine])[0]
            out["written"] = _written(bench, engine)
            engine.finish_state()

        out: dict[str, Any] = {}
        with full_disk(bench.rank == victim):
            out["error"] = error_of(begin_and_finish)
        bench.share()
        out["left"] = sorted(file.name for file in path.parent.iterdir() if file.name != path.name)
        engine.load_state(path)
        out["version"] = engine.version
        out["gap"] = gap(saved, bench.sent(engine))
        out["step"] = _steps(engine, [mine])[0]
        engine.begin_state(path)
        engine.finish_state()
        engine.load_state(path)
    return out


def spoil(file: Path, way: str) -> None:
    """Spoil a file in one of `_WAYS`."""
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


def _written(bench: RankBench, engine: Any) -> bool:
    """Wait a while until this rank has nothing left to write; tell whether it has. Any: an optional method."""
    deadline = bench.deadline(_PATIENCE_S)
    while not engine.state_written() and deadline.left():
        time.sleep(_LOOK_S)
    return bool(engine.state_written())


def _draw(bench: RankBench) -> float:
    return float(torch.rand(1, device=bench.target.torch_type))


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
    objective = DrawingGain()
    engine.train_step(batch, objective)
    engine.train_step(batch, objective)
    return objective.drawn
