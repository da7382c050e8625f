"""States that are missing, torn, spoiled or of another model: a CheckpointError, and an engine that is as before.

Knows: how files are spoiled.
Does not know: what is in them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.state import EXACT, SCHEDULED, steps
from areal_conformance.oracles.train_compare import raises, same
from areal_conformance.oracles.train_spoil import Bomb, flipped, write_pickle
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import Head, TrainEngine

SPEC = "train#areal_core.contract.train.TrainEngine.load_state"


class Loader:
    """An engine two steps further than a saved state, that is asked to load what it must not."""

    def __init__(self, bench: TrainBench, engine: TrainEngine, state: Path) -> None:
        steps(bench, engine, 1, 1)
        engine.version = 5
        engine.save_state(state)
        self.saved: dict[str, Tensor] = bench.witnessed(engine)
        steps(bench, engine, 2, 3)
        engine.version = 7
        engine.save_state(state.with_name("own"))
        self.held: dict[str, Tensor] = bench.witnessed(engine)
        steps(bench, engine, 4, 4)
        self._next: dict[str, Tensor] = bench.witnessed(engine)
        engine.load_state(state.with_name("own"))
        self._bench, self._engine = bench, engine

    def refuses(self, folder: Path, what: str) -> None:
        """Expect a CheckpointError, and the engine to hold what it held."""
        raises(CheckpointError, what, lambda: self._engine.load_state(folder))
        same(f"weights after {what} was refused", self._bench.witnessed(self._engine), self.held)
        expect(self._engine.version == 7, f"the version is {self._engine.version} after {what} was refused, it was 7")

    def refuses_or_loads(self, folder: Path, what: str) -> bool:
        """Expect a CheckpointError, or the very state that was saved; return whether it was loaded."""
        try:
            self._engine.load_state(folder)
        except CheckpointError:
            same(f"weights after {what} was refused", self._bench.witnessed(self._engine), self.held)
            return False
        except Exception as error:
            raise Violation(f"{what}: expected CheckpointError, got {type(error).__name__}: {error}") from error
        same(f"weights loaded in spite of {what}", self._bench.witnessed(self._engine), self.saved)
        expect(self._engine.version == 5, f"version {self._engine.version} was loaded in spite of {what}, saved was 5")
        return True

    def goes_on(self) -> None:
        """Expect the next step to be what it would have been."""
        steps(self._bench, self._engine, 4, 4)
        same("weights one step after states were refused", self._bench.witnessed(self._engine), self._next)


@check("train.state.missing", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def missing(bench: TrainBench) -> None:
    """A state that is not there, or lacks any of its files, is a CheckpointError, and the engine goes on as it was."""
    state = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, state)
        loader.refuses(bench.folder / "nowhere", "a folder that is not there")
        (bench.folder / "empty").mkdir()
        loader.refuses(bench.folder / "empty", "an empty folder")
        loader.refuses(bench.model(), "a model folder")
        for file in sorted(path for path in state.rglob("*") if path.is_file()):
            copy = bench.folder / f"without-{file.name}"
            shutil.copytree(state, copy)
            (copy / file.relative_to(state)).unlink()
            loader.refuses(copy, f"a state without {file.name}")
        loader.goes_on()


@check("train.state.truncated", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def truncated(bench: TrainBench) -> None:
    """A state with any of its files cut short is a CheckpointError, and the engine goes on as it was."""
    state = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, state)
        for file in sorted(path for path in state.rglob("*") if path.is_file()):
            for part in (0.0, 0.5, 0.999):
                copy = bench.folder / f"cut-{part}-{file.name}"
                shutil.copytree(state, copy)
                spoiled = copy / file.relative_to(state)
                data = spoiled.read_bytes()
                spoiled.write_bytes(data[: min(int(len(data) * part), len(data) - 2)])
                loader.refuses(copy, f"a state with {part:.1%} of {file.name}")
        loader.goes_on()


@check("train.state.flipped", level=Level.FAULTS, law=4, spec=SPEC, requires=EXACT)
def flipped_byte(bench: TrainBench) -> None:
    """One flipped bit anywhere in a state is a CheckpointError, unless what is loaded is exactly what was saved."""
    state = bench.folder / "state"
    with bench.engine(model=bench.model(hidden=32), optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, state)
        for folder, place in flipped(state, bench.folder / "flipped"):
            if loader.refuses_or_loads(folder, f"a bit flipped in {place}"):
                engine.load_state(bench.folder / "own")
        loader.goes_on()


@check("train.state.other_model", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def other_model(bench: TrainBench) -> None:
    """The state of a model with other shapes, other layers or another family is a CheckpointError."""
    others: list[dict[str, Any]] = [{"hidden": 32}, {"layers": 1}, {"layers": 3}, {"tied": False}, {"vocab_size": 72}]
    others += [{"kind": kind} for kind in bench.target.adapter.models[1:]]
    folders = {}
    for number, arguments in enumerate(others):
        folders[str(arguments)] = bench.folder / f"other-{number}"
        with bench.engine(model=bench.model(**arguments)) as engine:
            steps(bench, engine, 1, 1)
            engine.save_state(folders[str(arguments)])
    with bench.engine(optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, bench.folder / "state")
        for what, folder in folders.items():
            loader.refuses(folder, f"the state of a model with {what}")
        loader.goes_on()


@check("train.state.other_head", level=Level.SINGLE, law=4, spec=SPEC, requires=(*EXACT, "head.value"))
def other_head(bench: TrainBench) -> None:
    """A critic's state is no actor's, and a frozen role's is no trained one's: each is a CheckpointError."""
    critic, frozen = bench.folder / "critic", bench.folder / "frozen"
    with bench.engine(head=Head.VALUE) as engine:
        engine.save_state(critic)
    with bench.engine(optimizer=None) as engine:
        engine.save_state(frozen)
    with bench.engine(optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, bench.folder / "state")
        loader.refuses(critic, "a critic's state")
        loader.refuses(frozen, "a frozen role's state, which has no optimizer")
        loader.goes_on()


@check("train.state.no_pickle", level=Level.SINGLE, law=11, spec=SPEC)
def no_pickle(bench: TrainBench) -> None:
    """A state holds nothing pickled, and a pickle in the place of any of its files is refused without being opened."""
    state = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine, Bomb(bench.folder) as bomb:
        loader = Loader(bench, engine, state)
        files = sorted(path for path in state.rglob("*") if path.is_file())
        for file in files:
            head = file.read_bytes()[:4]
            pickled = head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") or head == b"PK\x03\x04"
            expect(not pickled, f"{file.name} of a state is a pickle")
            copy = bench.folder / f"pickled-{file.name}"
            shutil.copytree(state, copy)
            write_pickle(copy / file.relative_to(state), bomb)
            loader.refuses(copy, f"a state with a pickle as {file.name}")
        expect(not bomb.went_off, "a pickle in a state was executed")
        loader.goes_on()
