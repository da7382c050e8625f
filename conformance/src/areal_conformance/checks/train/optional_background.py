"""Claim `checkpoint.background`: a state written while steps are made is the state it was begun with.

Knows: what happens to the engine and to the disk between `begin_state` and `finish_state`.
Does not know: threads, or where an engine keeps its copy.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.state import SCHEDULED, end_of, ends_equal, steps, without_effect
from areal_conformance.oracles.spoil import files_at_most, tree
from areal_conformance.oracles.starving import starving
from areal_conformance.oracles.train_compare import same
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import ArealError, StorageError
from areal_core.contract.optional import SupportsBackgroundState, SupportsOffload
from areal_core.contract.train import TrainEngine

SPEC = "train#states-in-the-background"
CLAIM = ("checkpoint.background",)
EXACT = (*CLAIM, "checkpoint.exact")
SINCE = (1, 2)
_OFFLOAD = "memory.offload"
_PATIENCE_S = 10.0
_LOOK_S = 0.01
_GONE, _TAKEN = "has gone", "is a file by now"
TURNS = 8


@check("train.background.exact", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def exact(bench: TrainBench) -> None:
    """What is written while steps go on is the state of `begin_state`: weights, moments, steps, random numbers."""
    with bench.engine(*CLAIM, model=bench.model(hidden=64), optimizer=SCHEDULED) as engine:
        wanted = []
        for turn in (0, 1, 2):
            engine.version = turn
            _able(engine).begin_state(bench.folder / f"state-{turn}")
            engine.version = turn + 5
            reports = steps(bench, engine, 2 * turn + 1, 2 * turn + 2)
            _able(engine).finish_state()
            wanted.append((bench.witnessed(engine), reports))
    for turn, end in enumerate(wanted):
        with bench.engine(*CLAIM, model=bench.model(hidden=64), optimizer=SCHEDULED, seed=99) as engine:
            engine.load_state(bench.folder / f"state-{turn}")
            expect(engine.version == turn, f"version {engine.version} was loaded, begun was a state of {turn}")
            got = end_of(bench, engine, 2 * turn + 1, 2 * turn + 2)
            ends_equal(f"two steps after the state begun after {2 * turn}", got, end)


@check("train.background.offloaded", level=Level.SINGLE, law=8, spec=SPEC, requires=(*EXACT, _OFFLOAD), since=SINCE)
def offloaded(bench: TrainBench) -> None:
    """A state that is asked for while offloaded is refused with a typed error, or whole; it is never one of nothing."""
    with bench.engine(*CLAIM, _OFFLOAD, optimizer=SCHEDULED) as engine:
        steps(bench, engine, 1, 2)
        for name, save in (("at once", engine.save_state), ("in the background", partial(_whole, engine))):
            _movable(engine).offload()
            try:
                save(bench.folder / name)
            except ArealError as error:
                expect(bool(error.why or error.fix), f"saving {name} is refused without a reason: {error.what}")
                left = (bench.folder / name).exists()
                expect(not left, f"saving {name} while offloaded was refused, and left a state behind")
            _movable(engine).onload()
        wanted = end_of(bench, engine, 3, 4)
    for state in filter(Path.exists, (bench.folder / name for name in ("at once", "in the background"))):
        with bench.engine(*CLAIM, optimizer=SCHEDULED, seed=99) as engine:
            engine.load_state(state)
            ends_equal(f"the state saved {state.name} while offloaded", end_of(bench, engine, 3, 4), wanted)


@check("train.background.company", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def company(bench: TrainBench) -> None:
    """Saving, loading, scoring and sending meanwhile work as ever, and the state that was begun stays what it was."""
    early, begun, late = (bench.folder / name for name in ("early", "begun", "late"))
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        first = bench.witnessed(engine)
        engine.save_state(early)
        steps(bench, engine, 1, 2)
        second = bench.witnessed(engine)
        _able(engine).begin_state(begun)
        same("what is sent while a state is written", bench.sent(engine), second)
        engine.load_state(early)
        same("weights loaded while a state is written", bench.witnessed(engine), first)
        engine.save_state(late)
        _able(engine).finish_state()
        for path, weights in ((begun, second), (late, first)):
            engine.load_state(path)
            same(f"weights of the {path.name} state", bench.witnessed(engine), weights)


@check("train.background.late", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def late(bench: TrainBench) -> None:
    """A state that is written long after it was begun, for nobody lets its writer run, is the one that was begun."""
    folder, model = bench.folder / "state", bench.model(hidden=128)
    with bench.engine(*CLAIM, model=model, optimizer=SCHEDULED) as engine:
        for turn in range(TURNS):
            wanted = bench.witnessed(engine)
            with starving() as starve:
                _able(engine).begin_state(folder)
                starve()
                steps(bench, engine, turn, turn)
            after = bench.witnessed(engine)
            _able(engine).finish_state()
            engine.load_state(folder)
            same(f"weights of a state written during step {turn}", bench.witnessed(engine), wanted)
            steps(bench, engine, turn, turn)
            same(f"weights of step {turn}, from a state written during it", bench.witnessed(engine), after)


@check("train.background.unseen", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def unseen(bench: TrainBench) -> None:
    """Until `finish_state` the path holds what it held before, written or not; then the state, and nothing beside."""
    folder = bench.folder / "states" / "last"
    folder.parent.mkdir()
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        for turn in (1, 2):
            before = tree(folder) if folder.exists() else None
            steps(bench, engine, turn, turn)
            wanted = bench.witnessed(engine)
            _able(engine).begin_state(folder)
            _expect_still(folder, before, "after begin_state")
            steps(bench, engine, 7, 7)
            _expect_still(folder, before, "a step later")
            _wait_written(bench, engine)
            _expect_still(folder, before, "when state_written is True")
            _able(engine).finish_state()
            expect(folder.exists(), "finish_state returned and nothing is at the path")
            beside = sorted(path.name for path in folder.parent.iterdir())
            expect(beside == ["last"], f"beside the state lies {beside}")
            engine.load_state(folder)
            same("weights of the state finished", bench.witnessed(engine), wanted)


@check("train.background.order", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def order(bench: TrainBench) -> None:
    """`finish_state` alone does nothing; a second `begin_state` is refused, and the first state is whole."""
    first, second = bench.folder / "first", bench.folder / "second"
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        able = _able(engine)
        expect(able.state_written() is True, "state_written is not True before anything was begun")
        able.finish_state()
        steps(bench, engine, 1, 1)
        wanted = bench.witnessed(engine)
        able.begin_state(first)
        steps(bench, engine, 2, 2)
        raises(ArealError, "a second begin_state before finish_state", lambda: able.begin_state(second))
        able.finish_state()
        able.finish_state()
        expect(able.state_written() is True, "state_written is not True after finish_state")
        expect(not second.exists(), "the state whose begin_state was refused is there")
        able.begin_state(second)
        able.finish_state()
        expect(second.exists(), "no state can be begun after one was finished")
        engine.load_state(first)
        same("weights of the state begun first", bench.witnessed(engine), wanted)


@check("train.background.no_effect", level=Level.SINGLE, law=4, spec=SPEC, requires=CLAIM, since=SINCE)
def no_effect(bench: TrainBench) -> None:
    """A state that is written changes nothing: the steps made meanwhile are those without it."""

    def begin(engine: TrainEngine, step: int) -> None:
        _able(engine).begin_state(bench.folder / f"state-{step}")

    def finish(engine: TrainEngine, _step: int) -> None:
        _able(engine).finish_state()

    without_effect(bench, "with a state written during each", finish, *CLAIM, before=begin, optimizer=SCHEDULED)


@check("train.background.frozen", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def frozen(bench: TrainBench) -> None:
    """The state of a frozen role, which has no optimizer, is written as well."""
    with bench.engine(*CLAIM, optimizer=None) as engine:
        wanted = bench.witnessed(engine)
        _able(engine).begin_state(bench.folder / "frozen")
        _able(engine).finish_state()
        engine.load_state(bench.folder / "frozen")
        same("weights of a frozen role", bench.witnessed(engine), wanted)


@check("train.background.in_the_way", level=Level.SINGLE, law=10, spec=SPEC, requires=CLAIM, since=SINCE)
def in_the_way(bench: TrainBench) -> None:
    """A state that has no place is a StorageError by `finish_state`; nothing is left, and the engine goes on."""
    obstacle = bench.folder / "obstacle"
    obstacle.write_text("a file")
    before = tree(bench.folder)
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        for path in (obstacle / "here", obstacle / "deep" / "er"):
            raises(StorageError, f"a state below the file {obstacle.name}", lambda path=path: _whole(engine, path))  # type: ignore[misc]
            _able(engine).finish_state()
            expect(tree(bench.folder) == before, f"after the error the folder holds {sorted(tree(bench.folder))}")
        steps(bench, engine, 1, 1)
        _whole(engine, bench.folder / "state")
    expect((bench.folder / "state").exists(), "after the errors no state is written")


@check("train.background.full", level=Level.FAULTS, law=4, spec=SPEC, requires=EXACT, since=SINCE)
def full(bench: TrainBench) -> None:
    """A disk that fills up meanwhile is a StorageError by `finish_state`; the state before stays, and nothing else."""
    old = bench.folder / "place" / "old"
    old.parent.mkdir()
    with bench.engine(*CLAIM, model=bench.model(hidden=32), optimizer=SCHEDULED) as engine:
        steps(bench, engine, 1, 1)
        held = bench.witnessed(engine)
        _whole(engine, old)
        before = tree(old.parent)
        sizes = [path.stat().st_size for path in old.rglob("*") if path.is_file()]
        steps(bench, engine, 2, 2)
        for limit in (0, 100, max(sizes) // 2, max(sizes) - 1):
            for path in (old, old.with_name("new")):
                with files_at_most(limit):
                    what = f"a state where no file can have more than {limit} bytes"
                    raises(StorageError, what, lambda path=path: _whole(engine, path))  # type: ignore[misc]
                    _able(engine).finish_state()
                left = sorted(set(tree(old.parent)) ^ set(before))
                expect(not left, f"after the error at {limit} bytes, files have come or gone: {', '.join(left[:4])}")
                expect(tree(old.parent) == before, f"after the error at {limit} bytes the state before has changed")
        later = bench.witnessed(engine)
        engine.load_state(old)
        same("weights of the state before", bench.witnessed(engine), held)
        steps(bench, engine, 2, 2)
        same("weights a step after the state before", bench.witnessed(engine), later)
        _whole(engine, old.with_name("new"))
        engine.load_state(old.with_name("new"))


@check("train.background.close", level=Level.SINGLE, law=10, spec=SPEC, requires=CLAIM, since=SINCE)
def close(bench: TrainBench) -> None:
    """`close` drops a state that was not finished: twice, nothing of it is left, and the next engine starts."""
    place = bench.folder / "place"
    place.mkdir()
    for waits in (False, True):
        with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
            _able(engine).begin_state(place / "state")
            if waits:
                _wait_written(bench, engine)
            engine.close()
            engine.close()
            expect(not tree(place), f"after close the folder holds {sorted(tree(place))}")
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        _whole(engine, place / "state")
    expect((place / "state").exists(), "the engine started next wrote no state")


@check("train.background.failed", level=Level.FAULTS, law=9, spec=SPEC, requires=CLAIM, since=SINCE)
def failed(bench: TrainBench) -> None:
    """A state whose writing fails has nothing left to write and is told by `finish_state`; the next one is whole."""
    place = bench.folder / "place"
    place.mkdir()
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        _whole(engine, place / "before")
        for way in _ways(place / "before"):
            with _failing(bench, engine, place / "state", way) as begun:
                if begun and isinstance(way, int):
                    what = f"a state where no file can have more than {way} bytes"
                    raises(StorageError, what, _able(engine).finish_state)
                elif begun:
                    _told_or_whole(engine, place / "state", way)
            _able(engine).finish_state()
            if place.is_file():
                place.unlink()
            place.mkdir(exist_ok=True)
            wanted = bench.witnessed(engine)
            _whole(engine, place / "state")
            engine.load_state(place / "state")
            same(f"weights of the state after one that failed, {_named(way)}", bench.witnessed(engine), wanted)
            beside = sorted({path.name for path in place.iterdir()} - {"before", "state"})
            expect(not beside, f"beside the state after one that failed, {_named(way)}, lies {beside}")
            shutil.rmtree(place / "state")


@check("train.background.failed_close", level=Level.FAULTS, law=10, spec=SPEC, requires=CLAIM, since=SINCE)
def failed_close(bench: TrainBench) -> None:
    """`close` after a state whose writing failed raises nothing, and nothing of the state is left."""
    place, other = bench.folder / "place", bench.folder / "other"
    other.mkdir()
    with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine:
        _whole(engine, other / "state")
    for way in _ways(other / "state"):
        place.mkdir()
        with bench.engine(*CLAIM, optimizer=SCHEDULED) as engine, _failing(bench, engine, place / "state", way):
            engine.close()
            engine.close()
        left = sorted(tree(place)) if place.is_dir() else []
        expect(not left, f"after close of a state that failed, {_named(way)}, the folder holds {left}")
        if way == _TAKEN:
            expect(place.read_text() == _TAKEN, "close wrote into a file that took the folder's place")
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)


def _ways(state: Path) -> tuple[int | str, ...]:
    """Return how writing fails: at so many bytes a file, or because the folder of a state is no longer there."""
    largest = max(path.stat().st_size for path in state.rglob("*") if path.is_file())
    return 0, largest // 2, largest - 1, _GONE, _TAKEN


def _named(way: int | str) -> str:
    return f"at {way} bytes" if isinstance(way, int) else f"for its folder {way}"


@contextmanager
def _failing(bench: TrainBench, engine: TrainEngine, path: Path, way: int | str) -> Iterator[bool]:
    """Begin a state that fails, and wait until it has; yield whether `begin_state` left it to `finish_state`."""
    with files_at_most(way) if isinstance(way, int) else nullcontext():
        try:
            _able(engine).begin_state(path)
        except StorageError:
            yield False
            return
        _wait_written(bench, engine)
        if isinstance(way, str):
            shutil.rmtree(path.parent)
        if way == _TAKEN:
            path.parent.write_text(_TAKEN)
        yield True


def _told_or_whole(engine: TrainEngine, path: Path, way: int | str) -> None:
    """Expect a StorageError of `finish_state`, or a state that loads: an engine may make the folder again."""
    try:
        _able(engine).finish_state()
    except StorageError:
        expect(not path.exists(), f"a state that failed, {_named(way)}, is at its path")
    else:
        engine.load_state(path)


def _movable(engine: TrainEngine) -> SupportsOffload:
    return engine  # type: ignore[return-value]  # claimed, and `static.claims.protocols` looks


def _able(engine: TrainEngine) -> SupportsBackgroundState:
    return engine  # type: ignore[return-value]  # claimed, and `static.claims.protocols` looks


def _whole(engine: TrainEngine, path: Path) -> None:
    _able(engine).begin_state(path)
    _able(engine).finish_state()


def _wait_written(bench: TrainBench, engine: TrainEngine) -> None:
    deadline = bench.deadline(_PATIENCE_S)
    while not _able(engine).state_written():
        if not deadline.left():
            told = f"state_written is still False {deadline.limit_s:g} s after begin_state of a tiny model"
            raise deadline.late(told)
        time.sleep(_LOOK_S)


def _expect_still(folder: Path, before: dict[str, Any] | None, when: str) -> None:  # Any: bytes
    now = tree(folder) if folder.exists() else None
    found = "nothing" if now is None else sorted(now)
    expect(now == before, f"{when}, before finish_state, the path holds {found}: not what was there before")
