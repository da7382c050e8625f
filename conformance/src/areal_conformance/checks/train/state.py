"""`save_state` and `load_state`: the next step gives the same bits, and what is no state is a CheckpointError.

Knows: runs that were interrupted and runs that were not; how files are spoiled; how many orders of calls are tried.
Does not know: what a state looks like on disk; what must hold in any order (`machines.checkpoint`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.machines.checkpoint import OPERATIONS, Machine, Straight
from areal_conformance.machines.examples import examples
from areal_conformance.oracles.spoil import Bomb, flipped, write_pickle
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.oracles.train_objectives import Drawing
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import Head, OptimizerSpec, Output, TrainEngine, TrainReport
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

SPEC = "train#areal_core.contract.train.TrainEngine.load_state"
EXACT = ("checkpoint.exact",)
Act = Callable[[TrainEngine, int], object]
End = tuple[dict[str, Tensor], list[TrainReport]]
"""Weights after some steps, and what the steps reported."""
SCHEDULED = OptimizerSpec(
    lr=1e-2, weight_decay=0.1, schedule="cosine", warmup_steps=3, total_steps=9, min_lr_ratio=0.2, max_grad_norm=0.3
)


def steps(bench: TrainBench, engine: TrainEngine, first: int, last: int) -> list[TrainReport]:
    """Make steps number `first` to `last`, each on a batch of its own, with an objective that draws."""
    return [engine.train_step(bench.batch(seed=step), Drawing()) for step in range(first, last + 1)]


def plain(reports: list[TrainReport]) -> list[TrainReport]:
    """Return reports without what may differ."""
    return [attrs.evolve(report, seconds=0.0) for report in reports]


def ends_equal(what: str, got: End, wanted: End) -> None:
    """Expect the same reports and the same bits."""
    for left, right in zip(plain(got[1]), plain(wanted[1]), strict=True):
        expect(left == right, f"{what}: a report is {left}, without interruption {right}")
    same(f"weights, {what}", got[0], wanted[0])


def without_effect(
    bench: TrainBench, what: str, act: Act, *claims: str, before: Act | None = None, **fields: Any
) -> None:
    """Expect four steps with `act` after each, told its number, to be those without it. Any: fields of TrainSpec."""
    ends = []
    for acting in (False, True):
        with bench.engine(*claims, **fields) as engine:
            reports = []
            for step in range(1, 5):
                if acting and before is not None:
                    before(engine, step)
                reports += steps(bench, engine, step, step)
                if acting:
                    act(engine, step)
            ends.append((bench.witnessed(engine), reports))
    ends_equal(f"four steps, {what}", ends[1], ends[0])


def end_of(bench: TrainBench, engine: TrainEngine, first: int, last: int) -> End:
    """Make these steps; return the weights after them and their reports."""
    reports = steps(bench, engine, first, last)
    return bench.witnessed(engine), reports


def resumes(bench: TrainBench, saved_after: int, then: int, **fields: Any) -> None:
    """Expect `then` steps after save and load in a fresh engine to be those of the run that went on. Any: TrainSpec."""
    fields = {"optimizer": SCHEDULED, "max_tokens_per_microbatch": 20, **fields}
    folder = bench.folder / f"state-{saved_after}"
    last = saved_after + then
    with bench.engine(**fields) as engine:
        steps(bench, engine, 1, saved_after)
        engine.save_state(folder)
        wanted = end_of(bench, engine, saved_after + 1, last)
    with bench.engine(**{**fields, "seed": 99}) as engine:
        engine.load_state(folder)
        got = end_of(bench, engine, saved_after + 1, last)
        ends_equal(f"{then} steps after resuming from step {saved_after}", got, wanted)


@check("train.state.exact", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def exact(bench: TrainBench) -> None:
    """A fresh engine that loads a state goes on with the same bits: weights, both moments, steps, random numbers."""
    for saved_after in (0, 1, 4):
        resumes(bench, saved_after, 3)


@check("train.state.exact_untied", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def exact_untied(bench: TrainBench) -> None:
    """The same for every kind of model and an untied head: no tensor is left out of the state."""
    for kind in bench.target.adapter.models:
        resumes(bench, 2, 2, model=bench.model(kind=kind, tied=False))


@check("train.state.exact_critic", level=Level.SINGLE, law=4, spec=SPEC, requires=(*EXACT, "head.value"))
def exact_critic(bench: TrainBench) -> None:
    """The same for a critic: its head is part of the state."""
    results = []
    folder = bench.folder / "critic"
    with bench.engine(head=Head.VALUE) as engine:
        for step in range(4):
            engine.train_step(bench.batch(seed=step), ValueRegression())
            if step == 1:
                engine.save_state(folder)
        results.append(bench.witnessed(engine))
    with bench.engine(head=Head.VALUE) as engine:
        engine.load_state(folder)
        for step in (2, 3):
            engine.train_step(bench.batch(seed=step), ValueRegression())
        results.append(bench.witnessed(engine))
    same("a critic's weights two steps after resuming", results[1], results[0])


@check("train.state.exact_bfloat16", level=Level.SINGLE, law=4, spec=SPEC, requires=(*EXACT, "precision.bfloat16"))
def exact_bfloat16(bench: TrainBench) -> None:
    """The same in bfloat16: the state holds the master weights, not what they are rounded to."""
    resumes(bench, 2, 2, dtype="bfloat16")


@check("train.state.same_engine", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def same_engine(bench: TrainBench) -> None:
    """An engine that trained on returns to an earlier state of its own, and twice to the same one."""
    folder = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine:
        steps(bench, engine, 1, 2)
        engine.save_state(folder)
        wanted = end_of(bench, engine, 3, 5)
        for time in ("once", "twice", "three times"):
            engine.load_state(folder)
            ends_equal(f"after loading {time}", end_of(bench, engine, 3, 5), wanted)


@check("train.state.loaded_weights", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def loaded_weights(bench: TrainBench) -> None:
    """After `load_state` the engine scores and sends the weights it loaded, at once."""
    asked = frozenset({Output.LOGPROBS})
    folder = bench.folder / "state"
    for tied in (True, False):
        with bench.engine(model=bench.model(tied=tied)) as engine:
            engine.forward(bench.batch(), asked)
            engine.train_step(bench.batch(seed=1), PolicyGradient())
            engine.save_state(folder)
            sent, scored = bench.sent(engine), engine.forward(bench.batch(), asked).flat()
            engine.train_step(bench.batch(seed=2), PolicyGradient())
            engine.load_state(folder)
            got = engine.forward(bench.batch(), asked)
            same("scores after loading", got.flat(), scored)
            wanted = Oracle(bench.model(tied=tied)).load(bench.witnessed(engine)).columns(bench.batch())
            close(bench, "scores after loading", got.tokens["logprobs"], wanted[Output.LOGPROBS], atol=1e-4)
            same("what is sent after loading", bench.sent(engine), sent)


@check("train.state.version", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def version(bench: TrainBench) -> None:
    """The version comes back with the state, whatever it was in between."""
    for saved in (0, 41):
        folder = bench.folder / f"state-{saved}"
        with bench.engine() as engine:
            engine.version = saved
            engine.save_state(folder)
            engine.version = saved + 2
            engine.load_state(folder)
            expect(engine.version == saved, f"version {engine.version} after loading a state of version {saved}")
        with bench.engine() as engine:
            engine.load_state(folder)
            expect(engine.version == saved, f"a fresh engine has version {engine.version}, the state has {saved}")


@check("train.state.skipped_step", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def skipped_step(bench: TrainBench) -> None:
    """A step that was skipped before saving counts no more after loading than it did before."""
    folder = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine:
        steps(bench, engine, 1, 2)
        told = engine.train_step(bench.batch(advantages=torch.inf), PolicyGradient())
        expect(not told.stepped, "a step with infinite advantages was made")
        engine.save_state(folder)
        wanted = end_of(bench, engine, 3, 4)
    with bench.engine(optimizer=SCHEDULED) as engine:
        engine.load_state(folder)
        ends_equal("after a skipped step, saved and loaded", end_of(bench, engine, 3, 4), wanted)


@check("train.state.no_effect", level=Level.SINGLE, law=4, spec=SPEC)
def no_effect(bench: TrainBench) -> None:
    """Saving a state changes nothing: the steps after it are those without it."""

    def save(engine: TrainEngine, step: int) -> None:
        engine.save_state(bench.folder / f"state-{step}")

    without_effect(bench, "with a state saved after every step", save, optimizer=SCHEDULED)


@check("train.state.replaces", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def replaces(bench: TrainBench) -> None:
    """A state saved over an earlier one is the one that is loaded, and nothing is left beside it."""
    folder = bench.folder / "states" / "last"
    folder.parent.mkdir()
    with bench.engine() as engine:
        for step in (1, 2, 3):
            steps(bench, engine, step, step)
            engine.version = step
            engine.save_state(folder)
        wanted = bench.witnessed(engine)
    beside = sorted(path.name for path in folder.parent.iterdir())
    expect(beside == ["last"], f"beside the state lies {beside}")
    with bench.engine() as engine:
        engine.load_state(folder)
        expect(engine.version == 3, f"the state loaded is of version {engine.version}, the last one saved of 3")
        same("weights of the state saved last", bench.witnessed(engine), wanted)


@check("train.state.moved", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def moved(bench: TrainBench) -> None:
    """A state can be moved before it is loaded: it holds all it needs, wherever it lies."""
    folder, elsewhere = bench.folder / "state", bench.folder / "moved" / "there"
    with bench.engine() as engine:
        steps(bench, engine, 1, 2)
        engine.save_state(folder)
        wanted = bench.witnessed(engine)
    elsewhere.parent.mkdir()
    folder.rename(elsewhere)
    with bench.engine() as engine:
        engine.load_state(elsewhere)
        same("weights of the state that was moved", bench.witnessed(engine), wanted)


def copies(bench: TrainBench, state: Path, what: str) -> Iterator[tuple[Path, Path]]:
    """Copy a state once for each of its files; yield each copy, and that file in it."""
    for file in sorted(path for path in state.rglob("*") if path.is_file()):
        copy = bench.folder / f"{what}-{file.name}"
        shutil.copytree(state, copy)
        yield copy, copy / file.relative_to(state)


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
        for copy, file in copies(bench, state, "without"):
            file.unlink()
            loader.refuses(copy, f"a state without {file.name}")
        loader.goes_on()


@check("train.state.truncated", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def truncated(bench: TrainBench) -> None:
    """A state with any of its files cut short is a CheckpointError, and the engine goes on as it was."""
    state = bench.folder / "state"
    with bench.engine(optimizer=SCHEDULED) as engine:
        loader = Loader(bench, engine, state)
        for part in (0.0, 0.5, 0.999):
            for copy, file in copies(bench, state, f"cut-{part}"):
                data = file.read_bytes()
                file.write_bytes(data[: min(int(len(data) * part), len(data) - 2)])
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
        for copy, file in copies(bench, state, "pickled"):
            head = file.read_bytes()[:4]
            pickled = head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05") or head == b"PK\x03\x04"
            expect(not pickled, f"{file.name} of a state is a pickle")
            write_pickle(file, bomb)
            loader.refuses(copy, f"a state with a pickle as {file.name}")
        expect(not bomb.went_off, "a pickle in a state was executed")
        loader.goes_on()


@check("train.machine.checkpoint", level=Level.SINGLE, law=4, spec=SPEC, requires=EXACT)
def checkpoint(bench: TrainBench) -> None:
    """In whatever order it trains, saves, loads, crashes and skips, the engine is where the straight run was."""
    straight = Straight.of(bench)
    for operations in examples(OPERATIONS, count=12):
        Machine(bench=bench, straight=straight).play(operations)
