"""`save_state` and `load_state`: the next step gives the same bits.

Knows: runs that were interrupted and runs that were not.
Does not know: what a state looks like on disk; torn and foreign states are in `state_faults`.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.oracles.train_objectives import Drawing
from areal_conformance.outcome import expect
from areal_core.contract.train import Head, OptimizerSpec, Output, TrainEngine, TrainReport
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

SPEC = "train#areal_core.contract.train.TrainEngine.load_state"
EXACT = ("checkpoint.exact",)
SCHEDULED = OptimizerSpec(
    lr=1e-2, weight_decay=0.1, schedule="cosine", warmup_steps=3, total_steps=9, min_lr_ratio=0.2, max_grad_norm=0.3
)


def steps(bench: TrainBench, engine: TrainEngine, first: int, last: int) -> list[TrainReport]:
    """Make steps number `first` to `last`, each on a batch of its own, with an objective that draws."""
    return [engine.train_step(bench.batch(seed=step), Drawing()) for step in range(first, last + 1)]


def plain(reports: list[TrainReport]) -> list[TrainReport]:
    """Return reports without what may differ."""
    return [attrs.evolve(report, seconds=0.0) for report in reports]


def ends_equal(
    what: str, got: tuple[dict[str, Tensor], list[TrainReport]], wanted: tuple[dict[str, Tensor], list[TrainReport]]
) -> None:
    """Expect the same reports and the same bits."""
    for left, right in zip(plain(got[1]), plain(wanted[1]), strict=True):
        expect(left == right, f"{what}: a report is {left}, without interruption {right}")
    same(f"weights, {what}", got[0], wanted[0])


def resumes(bench: TrainBench, saved_after: int, then: int, **fields: Any) -> None:
    """Expect `then` steps after save and load in a fresh engine to be those of the run that went on. Any: TrainSpec."""
    fields = {"optimizer": SCHEDULED, "max_tokens_per_microbatch": 20, **fields}
    folder = bench.folder / f"state-{saved_after}"
    last = saved_after + then
    with bench.engine(**fields) as engine:
        steps(bench, engine, 1, saved_after)
        engine.save_state(folder)
        reports = steps(bench, engine, saved_after + 1, last)
        wanted = bench.witnessed(engine), reports
    with bench.engine(**{**fields, "seed": 99}) as engine:
        engine.load_state(folder)
        reports = steps(bench, engine, saved_after + 1, last)
        ends_equal(f"{then} steps after resuming from step {saved_after}", (bench.witnessed(engine), reports), wanted)


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
        reports = steps(bench, engine, 3, 5)
        wanted = bench.witnessed(engine), reports
        for time in ("once", "twice", "three times"):
            engine.load_state(folder)
            reports = steps(bench, engine, 3, 5)
            ends_equal(f"after loading {time}", (bench.witnessed(engine), reports), wanted)


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
        reports = steps(bench, engine, 3, 4)
        wanted = bench.witnessed(engine), reports
    with bench.engine(optimizer=SCHEDULED) as engine:
        engine.load_state(folder)
        reports = steps(bench, engine, 3, 4)
        ends_equal("after a skipped step, saved and loaded", (bench.witnessed(engine), reports), wanted)


@check("train.state.no_effect", level=Level.SINGLE, law=4, spec=SPEC)
def no_effect(bench: TrainBench) -> None:
    """Saving a state changes nothing: the steps after it are those without it."""
    ends = []
    for saving in (False, True):
        with bench.engine(optimizer=SCHEDULED) as engine:
            reports = []
            for step in range(1, 5):
                reports += steps(bench, engine, step, step)
                if saving:
                    engine.save_state(bench.folder / f"state-{step}")
            ends.append((bench.witnessed(engine), reports))
    ends_equal("with a state saved after every step", ends[1], ends[0])


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
