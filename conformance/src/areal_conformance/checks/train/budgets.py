"""Budgets of precision of a trainer: what is float32 stays so, in runs of every dtype.

A step whose gradient is 0 moves weights by their decay, or by their moments, alone: then formulas say to the last bits
where a weight must be, whatever model and dtype the gradients come from.

Knows: `probes.precision`, and how each kind of number is made to show.
Does not know: the values of columns and steps, which other checks compare.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from areal_conformance.benches.models import sharpen
from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.oracles.adapters import write_adapter
from areal_conformance.oracles.coasting import COAST, NOTHING, QUICK_BETAS, coasting, off_course
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import SCORES
from areal_conformance.outcome import expect
from areal_conformance.probes.precision import GROWTH, MOMENTS, PER_STEP, fine, relative
from areal_core.contract.train import Head, LoraSpec, OptimizerSpec, Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

SPEC = "train#precision"
_check = partial(check, level=Level.SINGLE, law=6, spec=SPEC)
DECAY = OptimizerSpec(lr=1e-2, betas=QUICK_BETAS, eps=1e-8, weight_decay=0.04, max_grad_norm=0.0)
"""Every step without a gradient leaves 0.9996 of each weight: less than half of bfloat16's last bit."""
STEPS = 32
DECAYED = 2e-3
"""How far what is left of an adapter may be from the formula: sent in bfloat16 it errs by 1e-4, kept so by 1e-2."""


@_check("train.precision.columns", law=1)
def columns(bench: TrainBench) -> None:
    """Log-probs and entropies are taken in float32 whatever the dtype of the run: none was rounded to less."""
    batch = bench.batch([(2, 19), (1, 24), (4, 19), (3, 30)])
    kept = batch.tokens["loss_mask"] & (batch.positions > 0)
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=bench.model(hidden=32), dtype=dtype, temperature=0.9) as engine:
            got = engine.forward(batch, SCORES)
        for name in sorted(SCORES):
            fine(f"{name} of a run in {dtype}", got.tokens[name][kept])


@_check("train.precision.length", law=1)
def length(bench: TrainBench) -> None:
    """Late in a long sequence log-probs are no worse than early in it: positions and sums are not kept in half."""
    folder = bench.folder / "sharp"
    shutil.copytree(bench.model(hidden=32, max_position=1024), folder)
    sharpen(folder)
    batch = bench.batch([(1, 767)])
    wanted = Oracle(folder).columns(batch)[Output.LOGPROBS].detach()
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=folder, dtype=dtype) as engine:
            got = engine.forward(batch, frozenset({Output.LOGPROBS})).tokens["logprobs"]
        error = (got.detach().cpu().double() - wanted).abs()[1:]
        early, late = float(error[8:128].mean()), float(error[-128:].mean())
        bench.numbers[f"{dtype} early"], bench.numbers[f"{dtype} late"] = early, late
        told = f"in {dtype} log-probs err by {early:.2g} around token 64 and by {late:.2g} around token 700"
        floor = 2e-6 if dtype == "float32" else 1e-3
        expect(late <= GROWTH * max(early, floor), f"{told}, at most {GROWTH:g} times as much")


@_check("train.precision.values", requires=("head.value",))
def values(bench: TrainBench) -> None:
    """A critic's values are float32 whatever the dtype of the run: none was rounded to less."""
    batch = bench.batch([(2, 19), (1, 24), (4, 19)])
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=bench.model(hidden=32), head=Head.VALUE, dtype=dtype) as engine:
            engine.train_step(bench.batch(), ValueRegression())
            got = engine.forward(batch, frozenset({Output.VALUES})).tokens["values"]
        fine(f"values of a run in {dtype}", got[batch.positions > 0])


@_check("train.precision.masters")
def masters(bench: TrainBench) -> None:
    """Weights are kept in float32: a decay too small for bfloat16 adds up over steps as the formula says."""
    for dtype, engine in held(bench, DECAY):
        before, kept = bench.witnessed(engine), 1.0 - DECAY.lr * DECAY.weight_decay
        for step in range(1, STEPS + 1):
            engine.train_step(bench.batch(advantages=0.0), NOTHING)
            if step not in (1, 4, STEPS):
                continue
            error = max(relative(t, before[n].double() * kept**step) for n, t in bench.witnessed(engine).items())
            bench.numbers[f"{dtype} after {step}"] = error
            told = (
                f"in {dtype}, {step} steps of decay alone leave weights {error:.2g} of themselves from where they must"
            )
            expect(error <= PER_STEP * (step + 1), f"{told} be, at most {PER_STEP:g} a step")


@_check("train.precision.adapter", requires=("lora", "weights.adapter"), since=(1, 3))
def adapter(bench: TrainBench) -> None:
    """An adapter is kept in float32 and decays: what is too small for bfloat16 adds up in A as the formula says."""
    lora, claims = LoraSpec(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "down_proj")), ("lora", "weights.adapter")
    wanted = (1.0 - DECAY.lr * DECAY.weight_decay) ** STEPS
    for dtype in bench.target.adapter.dtypes:
        model, fields = bench.model(hidden=32, layers=1), {"dtype": dtype, "optimizer": DECAY}
        with bench.engine(*claims, model=model, lora=lora, send_adapter=True, **fields) as engine:
            before = _down(bench.sent(engine))
            for _ in range(STEPS):
                engine.train_step(bench.batch(advantages=0.0), NOTHING)
            after = _down(bench.sent(engine))
        left = float(after @ before / (before @ before))  # roundings of what is sent even out
        bench.numbers[dtype] = left
        told = f"in {dtype}, {STEPS} steps of decay alone leave {left:.5f} of A, expected {wanted:.5f}"
        expect(abs(left - wanted) <= DECAYED, f"{told} within {DECAYED:g}: it is kept in half, or decays otherwise")


def _down(sent: Mapping[str, Tensor]) -> Tensor:
    """Return every A that was sent in one row, float64."""
    return torch.cat([tensor.double().flatten() for name, tensor in sorted(sent.items()) if "lora_A" in name])


@_check("train.precision.moments")
def moments(bench: TrainBench) -> None:
    """Both moments are kept in float32: steps without a gradient move weights by them as the formula says."""
    for dtype, engine in held(bench, COAST):
        before = bench.witnessed(engine)
        engine.train_step(bench.batch(), PolicyGradient())
        first = bench.witnessed(engine)
        coasts(bench, engine, before, first, f"in {dtype}")


@_check("train.precision.state", law=4)
def state(bench: TrainBench) -> None:
    """A saved state keeps moments and weights in float32: loaded, an engine goes on as the formula says."""
    for number, (dtype, engine) in enumerate(held(bench, COAST)):
        before = bench.witnessed(engine)
        engine.train_step(bench.batch(), PolicyGradient())
        first, path = bench.witnessed(engine), bench.folder / f"state-{number}"
        engine.save_state(path)
        engine.train_step(bench.batch(seed=1), PolicyGradient())
        engine.load_state(path)
        coasts(bench, engine, before, first, f"loaded, in {dtype}")


@_check("train.precision.saved", law=7)
def saved(bench: TrainBench) -> None:
    """What a float32 run saves and sends is float32 to the last bit: no tensor was rounded to less on its way."""
    if "float32" not in bench.target.adapter.dtypes:
        bench.notes.append("no float32 here: nothing to save in it")
        return
    with bench.engine(model=bench.model(hidden=32), dtype="float32", optimizer=COAST) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        engine.save_weights(bench.folder / "saved")
        for what, tensors in (("saved", read_folder(bench.folder / "saved")), ("sent", bench.sent(engine))):
            for name, tensor in tensors.items():
                if tensor.numel() >= 64:
                    fine(f"{name} as it is {what}", tensor)


@_check("train.precision.merged", requires=("lora", "weights.adapter", "precision.bfloat16"), since=(1, 3), law=7)
def merged(bench: TrainBench) -> None:
    """An adapter is merged in float32 and rounded once: what is sent in bfloat16 is the nearest to the exact sum."""
    model, folder = bench.model(hidden=32), bench.folder / "adapter"
    base = read_folder(model)
    lora = LoraSpec(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "gate_proj", "down_proj"), path=str(folder))
    exact = write_adapter(folder, base, rank=3, alpha=6.0, targets=lora.targets, seed=4)
    narrow = {name: tensor.bfloat16().float() for name, tensor in base.items()}
    other = write_adapter(bench.folder / "other", narrow, rank=3, alpha=6.0, targets=lora.targets, seed=4)
    with bench.engine("lora", "weights.adapter", model=model, dtype="bfloat16", lora=lora) as engine:
        sent = bench.sent(engine)
    for name in sorted(name for name in base if name.removesuffix(".weight").endswith(lora.targets)):
        hits = [float((sent[name] == each[name].bfloat16()).float().mean()) for each in (exact, other)]
        told = f"{max(hits):.1%} of {name} as sent are the nearest bfloat16 to W + (alpha / rank) B A"
        expect(max(hits) >= 0.99, f"{told}, expected nearly all: the sum was made of rounded parts")


def held(bench: TrainBench, optimizer: OptimizerSpec) -> Iterator[tuple[str, TrainEngine]]:
    """Yield an engine in each dtype whose weights can be seen in float32; a note where they cannot."""
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=bench.model(hidden=32, layers=1), dtype=dtype, optimizer=optimizer) as engine:
            seen = {tensor.dtype for tensor in bench.witnessed(engine).values()}
            if seen == {torch.float32}:
                yield dtype, engine
            else:
                bench.notes.append(f"in {dtype} weights are seen in {', '.join(map(str, seen))}: too coarse to tell")


def coasts(
    bench: TrainBench, engine: TrainEngine, before: Mapping[str, Tensor], first: Mapping[str, Tensor], told: str
) -> None:
    """Expect steps without a gradient to move every weight that a first one moved by the formula's multiple of it."""
    for step in range(1, STEPS + 1):
        engine.train_step(bench.batch(advantages=0.0), NOTHING)
        if step in (1, 4, 16, STEPS):
            error = off_course(before, first, bench.witnessed(engine), coasting(step))
            bench.numbers[f"{told}, after {step}"] = error
            what = f"{told}, {step} steps by moments alone err by {error:.2g} of the way"
            expect(error <= MOMENTS, f"{what}, at most {MOMENTS:g}: moments are kept coarsely, or another formula's")
