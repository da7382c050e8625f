"""The machine of a trainer: it trains, saves, loads, crashes, skips and sends, in any order.

The truth is a run that was never interrupted: after n good steps there is one set of weights, one next report.
Whatever road led to n steps, the engine must be there.

Knows: operations, the straight run, and what must hold after each operation.
Does not know: how states are saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from attrs import define, field
from hypothesis import strategies as st
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.oracles.train_compare import same
from areal_conformance.oracles.train_objectives import Drawing
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import OptimizerSpec, Output, TrainEngine, TrainReport
from areal_torch.testing.objectives import PolicyGradient

SPEC = OptimizerSpec(lr=1e-2, weight_decay=0.1, schedule="linear", warmup_steps=2, total_steps=9, max_grad_norm=0.3)
MOST_STEPS = 12
SAVES, LOADS = ("save-a", "save-b"), ("load-a", "load-b")

Operation = str

OPERATIONS = st.lists(
    st.sampled_from([*["train"] * 3, *SAVES, *LOADS, "crash", "skip", "send", "score", "publish", "load-nothing"]),
    min_size=8,
    max_size=24,
)


@define(kw_only=True, eq=False)
class Straight:
    """The run that was never interrupted: weights after n steps, and the report of step n + 1."""

    weights: list[Mapping[str, Tensor]] = field(factory=list)
    reports: list[TrainReport] = field(factory=list)

    @classmethod
    def of(cls, bench: TrainBench) -> Straight:
        """Make it."""
        run = cls()
        with bench.engine(model=bench.model(hidden=32), optimizer=SPEC) as engine:
            for number in range(MOST_STEPS + 1):
                run.weights.append(bench.witnessed(engine))
                run.reports.append(_step(bench, engine, number))
        return run


@define(kw_only=True, eq=False)
class Machine:
    """One engine after another, and what is known of the state it must be in."""

    bench: TrainBench
    straight: Straight
    steps: int = 0
    version: int = 0
    saved: dict[str, tuple[int, int]] = field(factory=dict)

    def play(self, operations: list[Operation]) -> None:
        """Carry out the operations; after each the engine must be where the straight run was."""
        left = list(operations)
        done: list[Operation] = []
        folder = self.bench.folder / f"machine-{len(list(self.bench.folder.glob('machine-*'))):03d}"
        folder.mkdir()
        while left:
            with self.bench.engine(model=self.bench.model(hidden=32), optimizer=SPEC) as engine:
                self.steps, self.version = 0, engine.version
                while left:
                    done.append(left.pop(0))
                    if done[-1] == "crash":
                        break
                    try:
                        self._do(engine, done[-1], folder / done[-1][-1])
                        self._look(engine)
                    except Violation as error:
                        raise Violation(f"after {', '.join(done)}: {error}") from error

    def _do(self, engine: TrainEngine, operation: Operation, path: Path) -> None:
        slot = operation[-1]
        if operation == "train" and self.steps < MOST_STEPS:
            told = attrs.evolve(_step(self.bench, engine, self.steps), seconds=0.0)
            wanted = attrs.evolve(self.straight.reports[self.steps], seconds=0.0)
            expect(told == wanted, f"step {self.steps + 1} reported {told}, the straight run {wanted}")
            self.steps += 1
        elif operation.startswith("save"):
            engine.save_state(path)
            self.saved[slot] = (self.steps, self.version)
        elif operation == "load-nothing" or (operation.startswith("load") and slot not in self.saved):
            raises(CheckpointError, "a state that was never saved", lambda: engine.load_state(path.with_name("none")))
        elif operation.startswith("load"):
            engine.load_state(path)
            self.steps, self.version = self.saved[slot]
        elif operation == "skip":
            told = engine.train_step(self.bench.batch(advantages=torch.inf), PolicyGradient())
            expect(not told.stepped, "a step with infinite advantages was made")
        elif operation == "send":
            same("what is sent", self.bench.sent(engine, self.version + 1), self.straight.weights[self.steps])
        elif operation == "score":
            engine.forward(self.bench.batch(seed=3), frozenset({Output.LOGPROBS}))
        elif operation == "publish":
            self.version += 1
            engine.version = self.version

    def _look(self, engine: TrainEngine) -> None:
        expect(engine.version == self.version, f"the version is {engine.version}, expected {self.version}")
        held = self.bench.witnessed(engine)
        what = f"weights after {self.steps} steps, and those of the straight run"
        same(what, held, self.straight.weights[self.steps])


def _step(bench: TrainBench, engine: TrainEngine, number: int) -> TrainReport:
    return engine.train_step(bench.batch([(2, 3), (1, 5), (4, 2)], seed=number), Drawing())
