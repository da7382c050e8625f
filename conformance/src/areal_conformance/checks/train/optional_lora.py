"""Claim `lora`: only an adapter is trained, and what leaves the engine is the merged model.

Which A an engine draws is its own affair, so nothing here knows A or B; what they must be shows in the merged
weights: in their rank, in the gradient's norm, in how far a step of known size moves them.

Knows: merged weights, scores and reports of adapters of several ranks, scales and targets.
Does not know: how an engine keeps an adapter; its exact state is in `optional_lora_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench, read_folder, same_bits
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, number, raises
from areal_conformance.oracles.train_experts import KIND as EXPERTS
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.errors import ArealError
from areal_core.contract.train import LoraSpec, OptimizerSpec, Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#lora"
CLAIM = ("lora",)
LOGPROBS = frozenset({Output.LOGPROBS})
_NO_MEMORY: Any = (0.0, 0.0)  # Any: the converter of `betas` has no type
SIGNS = OptimizerSpec(lr=30.0, betas=_NO_MEMORY, eps=1e-12, weight_decay=0.0, max_grad_norm=0.0)
"""Every step moves every trained number by exactly `lr`, up or down."""
SLOPE = OptimizerSpec(lr=1e5, betas=_NO_MEMORY, eps=1e5, weight_decay=0.0, max_grad_norm=0.0)
"""A step subtracts the gradient itself."""
QUICK = OptimizerSpec(lr=2e-2, weight_decay=0.3, max_grad_norm=0.0)
TARGETS: tuple[tuple[str, ...], ...] = (
    ("q_proj", "v_proj"),
    ("down_proj",),
    ("k_proj", "o_proj", "gate_proj", "up_proj"),
    ("layers.1.mlp.up_proj", "0.self_attn.o_proj"),
)


def base_of(model: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder."""
    return read_folder(model)


def is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Tell whether a tensor is the weight of a layer an adapter sits on."""
    return name.endswith(".weight") and name.removesuffix(".weight").endswith(targets)


def moved(bench: TrainBench, engine: TrainEngine, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return sent minus base, float64, of every tensor that differs."""
    sent = bench.sent(engine)
    deltas = {name: tensor.double() - base[name].double() for name, tensor in sent.items()}
    return {name: delta for name, delta in deltas.items() if bool(delta.any())}


def in_float32(bench: TrainBench) -> None:
    """Inconclusive where merged weights are too coarse to look at their rank and size."""
    if bench.dtype != "float32":
        raise Inconclusive(
            f"merged weights are sent in {bench.dtype}: the adapter's rank and size are lost in rounding"
        )


@check("train.lora.starts_as_base", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def starts_as_base(bench: TrainBench) -> None:
    """Before the first step the merged weights are the folder's and the scores are the base model's: B is zero."""
    for tied in (True, False):
        model = bench.model(tied=tied)
        with bench.engine("lora", model=model, lora=LoraSpec(rank=4, alpha=8.0, targets=TARGETS[2])) as engine:
            sent = bench.sent(engine)
            batch = bench.batch()
            got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
        base = base_of(model)
        expect(
            set(sent) == set(base), f"other tensors are sent than the folder has: {sorted(set(sent) ^ set(base))[:4]}"
        )
        for name, tensor in base.items():
            expect(
                torch.equal(sent[name], tensor.to(sent[name].dtype)), f"{name} differs from the folder before any step"
            )
        close(bench, "log-probs before any step", got, Oracle(model).columns(batch)[Output.LOGPROBS], atol=5e-5)


@check("train.lora.targets", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def targets(bench: TrainBench) -> None:
    """A step changes the sent weights of every target, again and again, and not one bit of any other tensor."""
    model = bench.model()
    base = base_of(model)
    for names in TARGETS:
        spec = LoraSpec(rank=2, alpha=4.0, targets=names)
        with bench.engine("lora", model=model, lora=spec, optimizer=QUICK) as engine:
            before = bench.sent(engine, 0)
            wanted = {name for name in base if is_target(name, names)}
            for step in range(1, 4):
                engine.train_step(bench.batch(seed=step), _objective())
                sent = bench.sent(engine, step)
                changed = set(same_bits(sent, before))
                stuck, odd = sorted(wanted - changed), sorted(changed - wanted)
                expect(not stuck, f"step {step} with targets {names} left {stuck[:3]} as they were: the base was sent")
                expect(not odd, f"step {step} with targets {names} changed {odd[:3]}, which no target names")
                before = sent


@check("train.lora.rank", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def rank(bench: TrainBench) -> None:
    """Merged minus base has the rank of the adapter, no more and no less, weight decay or not."""
    in_float32(bench)
    model = bench.model()
    base = base_of(model)
    for size in (1, 2, 5):
        spec = LoraSpec(rank=size, alpha=3.0, targets=("q_proj", "o_proj", "down_proj"))
        with bench.engine("lora", model=model, lora=spec, optimizer=QUICK) as engine:
            for step in range(5):
                engine.train_step(bench.batch(seed=step), _objective())
            deltas = moved(bench, engine, base)
        expect(deltas, "nothing moved in five steps")
        for name, delta in deltas.items():
            values = torch.linalg.svdvals(delta)
            found = int((values > 2e-4 * values[0]).sum())
            expect(found == size, f"{name} moved by a matrix of rank {found}; the adapter has rank {size}")


@check("train.lora.scale", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def scale(bench: TrainBench) -> None:
    """The merged weight is W + (alpha / rank) B A, to the factor: seen by steps that move A and B by a known size.

    After two steps of size lr up or down, B holds 0 and +-2 lr, A about +-lr; B A is then 2 lr^2 times integers
    of at most the rank, some of them odd.
    """
    in_float32(bench)
    model = bench.model()
    base = base_of(model)
    for size, alpha in ((1, 1.5), (2, 3.0), (4, 2.0), (3, 12.0)):
        spec = LoraSpec(rank=size, alpha=alpha, targets=("v_proj", "o_proj"))
        with bench.engine("lora", model=model, lora=spec, optimizer=SIGNS) as engine:
            for step in range(2):
                engine.train_step(bench.batch(seed=step), _objective())
            deltas = moved(bench, engine, base)
        expect(deltas, "nothing moved in two steps")
        for name, delta in deltas.items():
            counts = delta / (2 * SIGNS.lr**2 * alpha / size)
            off = float((counts - counts.round()).abs().max())
            largest = float(counts.abs().max())
            odd = bool((counts.round().abs() % 2 == 1).any())
            expect(
                off < 0.15 and largest < size + 0.15 and odd,
                f"{name}, rank {size}, alpha {alpha}: merged minus base is not (alpha / rank) B A: in units of one "
                f"pair's product it has entries up to {largest:.3f} (at most {size}), {off:.3f} off an integer",
            )


@check("train.lora.gradient", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 1))
def gradient(bench: TrainBench) -> None:
    """The gradient is the model's own, led into A and B: its norm and the first step satisfy one identity.

    With B zero, minus the gradient of B moves the merged weight by dW, and |gradient|^2 = -<dW, the model's gradient>.
    """
    in_float32(bench)
    model = bench.model()
    batch = bench.batch(seed=3)
    full = Oracle(model).gradient(batch, _objective()).by_name
    base = base_of(model)
    for names in TARGETS[:3]:
        for budget in (16384, 16):
            spec = LoraSpec(rank=3, alpha=2.0, targets=names)
            with bench.engine(
                "lora", model=model, lora=spec, optimizer=SLOPE, max_tokens_per_microbatch=budget
            ) as engine:
                norm = engine.train_step(batch, _objective()).grad_norm
                deltas = moved(bench, engine, base)
            along = _along(deltas, full, names)
            what = f"the norm of the gradient of an adapter on {', '.join(names)}, squared"
            number(bench, what, norm**2, along, rtol=2e-3)


@check("train.lora.clipping", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 1))
def clipping(bench: TrainBench) -> None:
    """The gradient is clipped by the norm of what is trained, the adapter's alone."""
    in_float32(bench)
    model = bench.model()
    batch = bench.batch(seed=4)
    full = Oracle(model).gradient(batch, _objective()).by_name
    base = base_of(model)
    limit = 0.05
    spec = LoraSpec(rank=2, alpha=2.0, targets=("q_proj", "v_proj"))
    clipped = attrs.evolve(SLOPE, max_grad_norm=limit)
    with bench.engine("lora", model=model, lora=spec, optimizer=clipped) as engine:
        norm = engine.train_step(batch, _objective()).grad_norm
        deltas = moved(bench, engine, base)
    expect(norm > limit, f"the norm {norm:g} is under the limit of {limit:g}: nothing to clip")
    along = _along(deltas, full, spec.targets)
    number(bench, "how far a clipped step went along the gradient", along, limit * norm, rtol=5e-3)


@check("train.lora.sent_is_used", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def sent_is_used(bench: TrainBench) -> None:
    """After any number of steps the scores are those of the merged weights that are sent."""
    for kind in bench.target.adapter.models:
        model = bench.model(kind=kind)
        oracle = Oracle(model)
        dense = () if kind == EXPERTS else ("up_proj", "down_proj")  # experts need not be linear layers of their own
        spec = LoraSpec(rank=3, alpha=7.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", *dense))
        with bench.engine("lora", model=model, lora=spec, optimizer=QUICK) as engine:
            for step in range(3):
                engine.train_step(bench.batch(seed=step), _objective())
                batch = bench.batch(seed=20 + step)
                got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
                wanted = oracle.load(bench.sent(engine, step)).columns(batch)[Output.LOGPROBS]
                close(bench, f"log-probs of {kind} after step {step + 1}, by sent weights", got, wanted, atol=3e-4)


@check("train.lora.learns", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 1))
def learns(bench: TrainBench) -> None:
    """Steps with positive advantages make the trained tokens likelier."""
    spec = LoraSpec(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "o_proj", "down_proj"))
    batch = bench.batch(advantages=1.0)
    with bench.engine("lora", lora=spec, optimizer=QUICK) as engine:
        before = float(engine.forward(batch, LOGPROBS).tokens["logprobs"].sum())
        for _ in range(6):
            engine.train_step(batch, _objective())
        after = float(engine.forward(batch, LOGPROBS).tokens["logprobs"].sum())
    expect(after > before + 1.0, f"six steps took the log-prob of the trained tokens from {before:.4f} to {after:.4f}")


@check("train.lora.seed", level=Level.SINGLE, law=4, spec=SPEC, requires=CLAIM, since=(1, 1))
def seed(bench: TrainBench) -> None:
    """A is drawn from the spec's seed: the same seed gives the same bits, another seed another adapter."""
    found = []
    for drawn in (7, 7, 8):
        spec = LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
        with bench.engine("lora", lora=spec, optimizer=QUICK, seed=drawn) as engine:
            engine.train_step(bench.batch(), _objective())
            found.append(bench.sent(engine))
    differing = same_bits(found[0], found[1])
    expect(not differing, f"one seed gave two adapters: {', '.join(differing[:3])}")
    changed = [name for name in found[0] if is_target(name, ("q_proj", "down_proj"))]
    alike = sorted(set(changed) - set(same_bits(found[0], found[2])))
    expect(not alike, f"another seed gave the same adapter on {', '.join(alike[:3])}: A is not random")


@check("train.lora.no_such_target", level=Level.SINGLE, law=8, spec=SPEC, requires=CLAIM, since=(1, 1))
def no_such_target(bench: TrainBench) -> None:
    """Targets that name no layer are refused at start: nothing would be trained."""
    for names in (("query_key_value",), ("q_projection",), ()):
        engine = bench.fresh("lora")
        spec = bench.spec("lora", lora=LoraSpec(rank=2, alpha=4.0, targets=names))
        context = bench.rank_context()
        error = raises(ArealError, f"targets {names}", lambda e=engine, s=spec, c=context: e.start(s, c))  # type: ignore[misc]
        expect(error.why or error.fix, f"targets {names} are refused without a reason: {error.what}")


def _along(deltas: Mapping[str, Tensor], gradient: Mapping[str, Tensor], names: tuple[str, ...]) -> float:
    """Return how far the targets went against the model's gradient."""
    return -sum(float((delta * gradient[name]).sum()) for name, delta in deltas.items() if is_target(name, names))


def _objective() -> Any:  # Any: an Objective, whose module imports torch
    return PolicyGradient()
