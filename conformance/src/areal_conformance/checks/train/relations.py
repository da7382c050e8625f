"""Whatever the role, the same lessons teach the same: stopped after every step, disturbed, or presented otherwise.

Knows: the roles, their lessons, and which relation is to the bit.
Does not know: how a lesson is presented or an engine disturbed (`oracles.relations`), or what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.checks.train.state import End, plain
from areal_conformance.oracles.relations import (
    Acts,
    Noisy,
    Presented,
    beside_strangers,
    copied,
    permuted,
    repeated,
    with_tails,
)
from areal_conformance.oracles.train_compare import number, same, weights_close
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Head, LoraSpec, Objective, OptimizerSpec, Output, TrainEngine, TrainReport
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

STEPS = 5
SKIPPED = 3
"""Number of the step whose loss is not finite."""
ACTS = 3
"""Between two steps: all of them in all, and some twice."""
BUDGET = 24
ATOL = 2e-5
LESSONS = OptimizerSpec(
    lr=1e-2, eps=1e-3, weight_decay=0.1, schedule="linear", warmup_steps=2, total_steps=6, max_grad_norm=0.3
)


@frozen(kw_only=True)
class Role:
    """How a role is started and taught."""

    fields: Mapping[str, Any]
    """Of TrainSpec. Any: as there."""
    objective: Callable[[], Objective]
    output: Output
    claims: tuple[str, ...] = ()


ACTOR = Role(fields={}, objective=PolicyGradient, output=Output.LOGPROBS)
HALF = evolve(ACTOR, fields={"dtype": "bfloat16"})
CRITIC = Role(fields={"head": Head.VALUE}, objective=ValueRegression, output=Output.VALUES)
ADAPTER = evolve(
    ACTOR, fields={"lora": LoraSpec(rank=3, alpha=9.0, targets=("q_proj", "v_proj", "down_proj"))}, claims=("lora",)
)

relation = partial(family, level=Level.SINGLE)


def roles(*claims: str) -> dict[str, Row]:
    """Return the roles a relation holds for; all of them need these claims."""
    return {
        "actor": Row("an actor", ACTOR, requires=claims),
        "critic": Row("a critic", CRITIC, requires=("head.value", *claims)),
        "adapter": Row("an adapter", ADAPTER, requires=("lora", *claims), since=(1, 1)),
    }


EXACT = "checkpoint.exact"
LOADING = "train#areal_core.contract.train.TrainEngine.load_state"


def lesson(bench: TrainBench, step: int) -> Batch:
    """Return the batch of a step: three of them, then the first again with other columns, then the second again."""
    batch = bench.batch(seed=(step - 1) % 3)
    return batch.with_tokens(advantages=-batch.tokens["advantages"].flip(0)) if step == 4 else batch


def taught(role: Role, engine: TrainEngine, batch: Batch, step: int) -> TrainReport:
    """Make one step; the loss of step SKIPPED is not finite."""
    if step == SKIPPED:
        broken = {n: batch.tokens[n] * torch.inf for n in ("advantages", "returns")}
        return engine.train_step(batch.with_tokens(**broken), role.objective())
    return engine.train_step(batch, Noisy(role.objective()))


def end(bench: TrainBench, role: Role, engine: TrainEngine, reports: list[TrainReport]) -> End:
    """Return weights, what the engine says of a batch, and reports."""
    return {**bench.witnessed(engine), "(a column)": column(engine, role, bench.batch(seed=9))}, reports


def column(engine: TrainEngine, role: Role, batch: Batch) -> Tensor:
    """Return what a role says of a batch."""
    said: Tensor = engine.forward(batch, frozenset({role.output})).tokens[role.output]
    return said


def started(bench: TrainBench, role: Role, **more: Any) -> Any:
    """Start an engine for a role, as `bench.engine` does. Any: fields of TrainSpec, and a context manager."""
    fields = {"optimizer": LESSONS, "max_tokens_per_microbatch": BUDGET, **role.fields, **more}
    return bench.engine(*role.claims, **fields)


def straight(bench: TrainBench, role: Role) -> End:
    """Teach an engine that nobody disturbs, each step from a batch of its own memory."""
    with started(bench, role) as engine:
        reports = [taught(role, engine, copied(lesson(bench, step)), step) for step in range(1, STEPS + 1)]
        return end(bench, role, engine, reports)


@relation(
    "train.resumed.{role}",
    {
        **roles(EXACT),
        "bfloat16": Row("an actor in bfloat16", HALF, requires=("precision.bfloat16", EXACT)),
    },
    law=4,
    spec=LOADING,
)
def resumed(bench: TrainBench, role: Role) -> None:
    """Stopped after every step and resumed by a fresh engine, {...} learns to the bit what it learns without a stop."""
    folder, reports = bench.folder / "state", list[TrainReport]()
    for step in range(1, STEPS + 1):
        with started(bench, role, seed=step) as engine:
            if step > 1:
                engine.load_state(folder)
                expect(engine.version == step - 1, f"version {engine.version} was loaded, {step - 1} was saved")
            reports.append(taught(role, engine, lesson(bench, step), step))
            engine.version = step
            engine.save_state(folder)
            found = end(bench, role, engine, reports)
    alike(f"{STEPS} steps by {STEPS} engines, one after the other", found, straight(bench, role))


@check("train.resumed.reference", level=Level.SINGLE, law=4, spec=LOADING, requires=(EXACT,))
def resumed_reference(bench: TrainBench) -> None:
    """Resumed by a fresh engine after every batch, a frozen role says to the bit what it says without a stop."""
    for dtype in bench.target.adapter.dtypes:
        role = evolve(ACTOR, fields={"optimizer": None, "temperature": 0.7, "dtype": dtype})
        with started(bench, role) as engine:
            said = [column(engine, role, lesson(bench, step)) for step in range(1, STEPS + 1)]
            held = bench.witnessed(engine)
        folder = bench.folder / f"frozen-{dtype}"
        for step, wanted in enumerate(said, start=1):
            what = f"a frozen role in {dtype}, in the hands of its engine number {step}"
            with started(bench, role, seed=step) as engine:
                if step > 1:
                    engine.load_state(folder)
                    expect(engine.version == step - 1, f"{what}: version {engine.version}, saved with {step - 1}")
                same(f"the weights of {what}", bench.witnessed(engine), held)
                same(
                    f"what is said by {what}", {"column": column(engine, role, lesson(bench, step))}, {"column": wanted}
                )
                engine.version = step
                engine.save_state(folder)


@relation("train.disturbed.{role}", roles(), law=3, spec="train#areal_core.contract.train.TrainEngine.forward")
def disturbed(bench: TrainBench, role: Role) -> None:
    """Scores, sends, saves, refusals and failures between the steps of {...} change no bit of what it learns."""
    acts, done = Acts(bench, role.output, role.objective, seed=5), list[str]()
    lessons = {step: lesson(bench, step) for step in range(1, STEPS + 1)}
    lessons[5] = lessons[2]  # the very same tensors again
    with started(bench, role) as engine:
        reports = []
        for step, batch in lessons.items():
            done += acts.do(engine, ACTS)
            reports.append(taught(role, engine, batch, step))
        found = end(bench, role, engine, reports)
    alike(f"{STEPS} steps with these between them: {', '.join(done)}", found, straight(bench, role))


FORMS: Mapping[str, tuple[int, tuple[Presented, ...]]] = {
    "in another order, beside sequences that are not trained": (16, (permuted, beside_strangers)),
    "with tokens behind each that are not trained, in one micro-batch": (4096, (with_tails,)),
    "each sequence twice, in another order": (30, (repeated, permuted)),
}
"""Tokens of a micro-batch, and what is done to the batch of every step."""


@relation("train.presented.{role}", roles(), law=6, spec="train#areal_core.contract.train.Objective")
def presented(bench: TrainBench, role: Role) -> None:
    """The same is learned by {...} from sequences in any order, cut anyhow, twice each, beside strangers."""
    wanted, norms = _presented(bench, role, BUDGET, ())
    for form, (budget, changes) in FORMS.items():
        got, told = _presented(bench, role, budget, changes)
        for step, (left, right) in enumerate(zip(told, norms, strict=True), start=1):
            for name, one, other in zip(("loss", "gradient norm"), left, right, strict=True):
                number(bench, f"the {name} of step {step}, {form}", one, other, atol=2e-5, rtol=2e-5)
        weights_close(bench, f"weights after {len(norms)} steps, {form}", got, wanted, atol=ATOL)


def _presented(
    bench: TrainBench, role: Role, budget: int, changes: tuple[Presented, ...]
) -> tuple[Mapping[str, Tensor], list[tuple[float, float]]]:
    """Return weights, and loss and gradient norm of each step, of a role that is taught in this form."""
    told = []
    with started(bench, role, max_tokens_per_microbatch=budget) as engine:
        for step in (1, 2, 4):
            batch = lesson(bench, step)
            for change in changes:
                batch = change(batch, step)
            report = engine.train_step(batch, role.objective())
            told.append((report.loss, report.grad_norm))
        return bench.witnessed(engine), told


def alike(what: str, got: End, wanted: End) -> None:
    """Expect the same reports, what is not a number among them, and the same bits."""
    for step, (left, right) in enumerate(zip(plain(got[1]), plain(wanted[1]), strict=True), start=1):
        expect(repr(left) == repr(right), f"{what}: the report of step {step} is {left}, undisturbed {right}")
    same(f"what is learned in {what}", got[0], wanted[0])
