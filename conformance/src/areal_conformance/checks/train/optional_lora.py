"""Claim `lora`: only an adapter is trained, and what leaves the engine is the merged model.

Which A an engine draws is its own affair, so nothing here knows A or B; what they must be shows in the merged
weights: in their rank, in the gradient's norm, in how far a step of known size moves them.

Knows: merged weights, scores and reports of adapters of several ranks, scales and targets.
Does not know: how an engine keeps an adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench, read_folder, same_bits
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, number, same
from areal_conformance.oracles.train_experts import KIND as EXPERTS
from areal_conformance.outcome import Inconclusive, expect, raises
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, CheckpointError
from areal_core.contract.train import LoraSpec, OptimizerSpec, Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

_check = partial(check, level=Level.SINGLE, spec="train#lora", requires=("lora",), since=(1, 1))
LOGPROBS = frozenset({Output.LOGPROBS})
_NO_MEMORY: Any = (0.0, 0.0)  # Any: the converter of `betas` has no type
SIGNS = OptimizerSpec(lr=30.0, betas=_NO_MEMORY, eps=1e-12, weight_decay=0.0, max_grad_norm=0.0)
"""Every step moves every trained number by exactly `lr`, up or down."""
SLOPE = OptimizerSpec(lr=1e5, betas=_NO_MEMORY, eps=1e5, weight_decay=0.0, max_grad_norm=0.0)
"""A step subtracts the gradient itself."""
QUICK = OptimizerSpec(lr=2e-2, weight_decay=0.3, max_grad_norm=0.0)
ADAPTER = LoraSpec(rank=3, alpha=9.0, targets=("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"))
TARGETS: tuple[tuple[str, ...], ...] = (
    ("q_proj", "v_proj"),
    ("down_proj",),
    ("k_proj", "o_proj", "gate_proj", "up_proj"),
    ("layers.1.mlp.up_proj", "0.self_attn.o_proj"),
)


def is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Tell whether a tensor is the weight of a layer an adapter sits on."""
    return name.endswith(".weight") and name.removesuffix(".weight").endswith(targets)


def moved(
    bench: TrainBench, lora: LoraSpec, optimizer: OptimizerSpec, batches: Sequence[Batch], **fields: Any
) -> tuple[dict[str, Tensor], float]:
    """Make a step on each batch; return sent minus base, float64, of every tensor that differs, and the last norm.

    Inconclusive where merged weights are too coarse to look at their rank and size. Any: fields of TrainSpec.
    """
    if bench.dtype != "float32":
        raise Inconclusive(f"merged weights are sent in {bench.dtype}: rank and size are lost in rounding")
    base = read_folder(bench.model())
    with bench.engine("lora", model=bench.model(), lora=lora, optimizer=optimizer, **fields) as engine:
        norms = [engine.train_step(batch, PolicyGradient()).grad_norm for batch in batches]
        deltas = {name: tensor.double() - base[name].double() for name, tensor in bench.sent(engine).items()}
    found = {name: delta for name, delta in deltas.items() if bool(delta.any())}
    expect(found, f"nothing moved in {len(norms)} steps")
    return found, norms[-1]


@_check("train.lora.starts_as_base", law=7)
def starts_as_base(bench: TrainBench) -> None:
    """Before the first step the merged weights are the folder's and the scores are the base model's: B is zero."""
    for tied in (True, False):
        model = bench.model(tied=tied)
        with bench.engine("lora", model=model, lora=LoraSpec(rank=4, alpha=8.0, targets=TARGETS[2])) as engine:
            sent = bench.sent(engine)
            batch = bench.batch()
            got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
        base = read_folder(model)
        odd = sorted(set(sent) ^ set(base))
        expect(not odd, f"other tensors are sent than the folder has: {odd[:4]}")
        for name, tensor in base.items():
            alike = torch.equal(sent[name], tensor.to(sent[name].dtype))
            expect(alike, f"{name} differs from the folder before any step")
        close(bench, "log-probs before any step", got, Oracle(model).columns(batch)[Output.LOGPROBS], atol=5e-5)


@_check("train.lora.targets", law=7)
def targets(bench: TrainBench) -> None:
    """A step changes the sent weights of every target, again and again, and not one bit of any other tensor."""
    model = bench.model()
    base = read_folder(model)
    for names in TARGETS:
        spec = LoraSpec(rank=2, alpha=4.0, targets=names)
        with bench.engine("lora", model=model, lora=spec, optimizer=QUICK) as engine:
            before = bench.sent(engine, 0)
            wanted = {name for name in base if is_target(name, names)}
            for step in range(1, 4):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                sent = bench.sent(engine, step)
                changed = set(same_bits(sent, before))
                stuck, odd = sorted(wanted - changed), sorted(changed - wanted)
                expect(not stuck, f"step {step} with targets {names} left {stuck[:3]} as they were: the base was sent")
                expect(not odd, f"step {step} with targets {names} changed {odd[:3]}, which no target names")
                before = sent


@_check("train.lora.rank", law=7)
def rank(bench: TrainBench) -> None:
    """Merged minus base has the rank of the adapter, no more and no less, weight decay or not."""
    for size in (1, 2, 5):
        spec = LoraSpec(rank=size, alpha=3.0, targets=("q_proj", "o_proj", "down_proj"))
        deltas, _ = moved(bench, spec, QUICK, [bench.batch(seed=step) for step in range(5)])
        for name, delta in deltas.items():
            values = torch.linalg.svdvals(delta)
            found = int((values > 2e-4 * values[0]).sum())
            expect(found == size, f"{name} moved by a matrix of rank {found}; the adapter has rank {size}")


@_check("train.lora.scale", law=7)
def scale(bench: TrainBench) -> None:
    """The merged weight is W + (alpha / rank) B A, to the factor: seen by steps that move A and B by a known size.

    After two steps of size lr up or down, B holds 0 and +-2 lr, A about +-lr; B A is then 2 lr^2 times integers
    of at most the rank, some of them odd.
    """
    for size, alpha in ((1, 1.5), (2, 3.0), (4, 2.0), (3, 12.0)):
        spec = LoraSpec(rank=size, alpha=alpha, targets=("v_proj", "o_proj"))
        deltas, _ = moved(bench, spec, SIGNS, [bench.batch(seed=step) for step in range(2)])
        for name, delta in deltas.items():
            counts = delta / (2 * SIGNS.lr**2 * alpha / size)  # in units of one pair's product
            off = float((counts - counts.round()).abs().max())
            largest = float(counts.abs().max())
            odd = bool((counts.round().abs() % 2 == 1).any())
            what = f"{name}, rank {size}, alpha {alpha}: merged minus base is not (alpha / rank) B A"
            found = f"its counts go up to {largest:.3f} (at most {size}), {off:.3f} off an integer"
            expect(off < 0.15 and largest < size + 0.15 and odd, f"{what}: {found}")


@_check("train.lora.gradient", law=6)
def gradient(bench: TrainBench) -> None:
    """The gradient is the model's own, led into A and B: its norm and the first step satisfy one identity.

    With B zero, minus the gradient of B moves the merged weight by dW, and |gradient|^2 = -<dW, the model's gradient>.
    """
    batch = bench.batch(seed=3)
    full = Oracle(bench.model()).gradient(batch, PolicyGradient()).by_name
    for names in TARGETS[:3]:
        for budget in (16384, 16):
            spec = LoraSpec(rank=3, alpha=2.0, targets=names)
            deltas, norm = moved(bench, spec, SLOPE, [batch], max_tokens_per_microbatch=budget)
            along = _along(deltas, full, names)
            what = f"the norm of the gradient of an adapter on {', '.join(names)}, squared"
            number(bench, what, norm**2, along, rtol=2e-3)


@_check("train.lora.clipping", law=6)
def clipping(bench: TrainBench) -> None:
    """The gradient is clipped by the norm of what is trained, the adapter's alone."""
    batch = bench.batch(seed=4)
    full = Oracle(bench.model()).gradient(batch, PolicyGradient()).by_name
    limit = 0.05
    spec = LoraSpec(rank=2, alpha=2.0, targets=("q_proj", "v_proj"))
    deltas, norm = moved(bench, spec, attrs.evolve(SLOPE, max_grad_norm=limit), [batch])
    expect(norm > limit, f"the norm {norm:g} is under the limit of {limit:g}: nothing to clip")
    along = _along(deltas, full, spec.targets)
    number(bench, "how far a clipped step went along the gradient", along, limit * norm, rtol=5e-3)


@_check("train.lora.sent_is_used", law=7)
def sent_is_used(bench: TrainBench) -> None:
    """After any number of steps the scores are those of the merged weights that are sent."""
    for kind in bench.target.adapter.models:
        model = bench.model(kind=kind)
        oracle = Oracle(model)
        dense = () if kind == EXPERTS else ("up_proj", "down_proj")  # experts need not be linear layers of their own
        spec = LoraSpec(rank=3, alpha=7.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", *dense))
        with bench.engine("lora", model=model, lora=spec, optimizer=QUICK) as engine:
            for step in range(3):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                batch = bench.batch(seed=20 + step)
                got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
                wanted = oracle.load(bench.sent(engine, step)).columns(batch)[Output.LOGPROBS]
                close(bench, f"log-probs of {kind} after step {step + 1}, by sent weights", got, wanted, atol=3e-4)


@_check("train.lora.learns", law=6)
def learns(bench: TrainBench) -> None:
    """Steps with positive advantages make the trained tokens likelier."""
    spec = LoraSpec(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "o_proj", "down_proj"))
    batch = bench.batch(advantages=1.0)
    with bench.engine("lora", lora=spec, optimizer=QUICK) as engine:
        before = float(engine.forward(batch, LOGPROBS).tokens["logprobs"].sum())
        for _ in range(6):
            engine.train_step(batch, PolicyGradient())
        after = float(engine.forward(batch, LOGPROBS).tokens["logprobs"].sum())
    expect(after > before + 1.0, f"six steps took the log-prob of the trained tokens from {before:.4f} to {after:.4f}")


@_check("train.lora.seed", law=4)
def seed(bench: TrainBench) -> None:
    """A is drawn from the spec's seed: the same seed gives the same bits, another seed another adapter."""
    found = []
    for drawn in (7, 7, 8):
        spec = LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
        with bench.engine("lora", lora=spec, optimizer=QUICK, seed=drawn) as engine:
            engine.train_step(bench.batch(), PolicyGradient())
            found.append(bench.sent(engine))
    differing = same_bits(found[0], found[1])
    expect(not differing, f"one seed gave two adapters: {', '.join(differing[:3])}")
    changed = [name for name in found[0] if is_target(name, ("q_proj", "down_proj"))]
    alike = sorted(set(changed) - set(same_bits(found[0], found[2])))
    expect(not alike, f"another seed gave the same adapter on {', '.join(alike[:3])}: A is not random")


@_check("train.lora.no_such_target", law=8)
def no_such_target(bench: TrainBench) -> None:
    """Targets that name no layer are refused at start: nothing would be trained."""
    for names in (("query_key_value",), ("q_projection",), ()):
        engine = bench.fresh("lora")
        spec = bench.spec("lora", lora=LoraSpec(rank=2, alpha=4.0, targets=names))
        context = bench.rank_context()
        error = raises(ArealError, f"targets {names}", lambda e=engine, s=spec, c=context: e.start(s, c))  # type: ignore[misc]
        expect(error.why or error.fix, f"targets {names} are refused without a reason: {error.what}")


@_check("train.lora.no_layer", law=8)
def no_layer(bench: TrainBench) -> None:
    """Embeddings, heads, routers and experts that targets name beside layers are refused at start, or adapted too."""
    named: dict[str, dict[str, Any]] = {"embed_tokens": {}, "lm_head": {"tied": False}}
    if EXPERTS in bench.target.adapter.models:
        named |= {"mlp.gate": {"kind": EXPERTS}, "up_proj": {"kind": EXPERTS}}
    for target, arguments in named.items():
        model = bench.model(**arguments)
        spec = bench.spec(
            "lora", model=model, optimizer=QUICK, lora=LoraSpec(rank=2, alpha=4.0, targets=("q_proj", target))
        )
        engine, base = bench.fresh("lora"), read_folder(model)
        try:
            engine.start(spec, bench.rank_context())
            for step in (1, 2):
                _step(bench, engine, step)
            sent = bench.sent(engine)
        except ArealError as error:
            expect(error.why or error.fix, f"the target {target} is refused without a reason: {error.what}")
            continue
        finally:
            engine.close()
        stuck = not any(is_target(name, (target,)) for name in same_bits(sent, base))
        expect(not stuck, f"the target {target} is accepted, and after two steps every weight it names is the base's")


@_check("train.lora.send_disturbs_nothing", law=7)
def send_disturbs_nothing(bench: TrainBench) -> None:
    """Merging for a send or a folder leaves the training as it is: scores, sends and steps keep their bits."""
    found = []
    for sends in (False, True):
        with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
            _step(bench, engine, 1)
            if sends:
                before = _scores(bench, engine)
                first = bench.sent(engine, 1)
                engine.save_weights(bench.folder / "model")
                same("weights sent twice", bench.sent(engine, 2), first)
                after = _scores(bench, engine)
                same("scores after merged weights were sent", {"logprobs": after}, {"logprobs": before})
            norms = [_step(bench, engine, step) for step in (2, 3)]
            found.append((norms, bench.sent(engine, 3)))
    expect(found[0][0] == found[1][0], f"gradient norms after a send: expected {found[0][0]}, got {found[1][0]}")
    same("weights two steps after a send, with and without it", found[1][1], found[0][1])


@_check("train.lora.folder", law=7)
def folder(bench: TrainBench) -> None:
    """`save_weights` writes the merged model under the model's own names, the same bits that are sent."""
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
        _step(bench, engine, 1)
        sent, scores = bench.sent(engine, 1), _scores(bench, engine)
        engine.save_weights(bench.folder / "model")
    same("tensors of the folder, and sent", read_folder(bench.folder / "model"), sent)
    with bench.engine(model=bench.folder / "model", optimizer=None) as engine:
        loaded = _scores(bench, engine)
    close(bench, "log-probs of a model loaded from the merged folder", loaded, scores, atol=3e-4)


@_check("train.lora.state", law=4, requires=("lora", "checkpoint.exact"))
def state(bench: TrainBench) -> None:
    """A saved state brings the adapter back exactly: in the same engine, and in one that drew another A."""
    path = bench.folder / "state"
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK, seed=1) as engine:
        for step in (1, 2):
            _step(bench, engine, step)
        engine.version = 2
        engine.save_state(path)
        saved = bench.sent(engine, 2)
        norms = [_step(bench, engine, step) for step in (3, 4)]
        wanted = bench.sent(engine, 4)
        engine.load_state(path)
        _continues(bench, engine, saved, norms, wanted, "in the engine that saved it")
    for drawn, steps in ((5, 0), (6, 3)):
        with bench.engine("lora", lora=ADAPTER, optimizer=QUICK, seed=drawn) as engine:
            for step in range(steps):
                _step(bench, engine, 10 + step)
            engine.load_state(path)
            expect(engine.version == 2, f"the version loaded is {engine.version}, 2 was saved")
            same("weights sent by an engine that loaded a state", bench.sent(engine, 2), saved)
            engine.load_state(path)
            _continues(bench, engine, saved, norms, wanted, f"in an engine of seed {drawn} after {steps} steps")


@_check("train.lora.state_of_another", law=4, requires=("lora", "checkpoint.exact"))
def state_of_another(bench: TrainBench) -> None:
    """A state saved with another adapter, or with none, is refused and changes nothing."""
    other = LoraSpec(rank=2, alpha=9.0, targets=ADAPTER.targets)
    elsewhere = LoraSpec(rank=3, alpha=9.0, targets=("q_proj", "v_proj"))
    weaker = LoraSpec(rank=3, alpha=3.0, targets=ADAPTER.targets)
    others = (other, elsewhere, weaker, None)
    for place, lora in enumerate(others):
        with bench.engine("lora", lora=lora, optimizer=QUICK) as engine:
            _step(bench, engine, 1)
            engine.save_state(bench.folder / f"state-{place}")
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
        _step(bench, engine, 1)
        before = bench.sent(engine, 1)
        for place, lora in enumerate(others):
            path = bench.folder / f"state-{place}"
            raises(CheckpointError, f"a state of {lora} for {ADAPTER}", lambda path=path: engine.load_state(path))  # type: ignore[misc]
            same(f"weights after a state of {lora} was refused", bench.sent(engine, 1), before)


def _continues(
    bench: TrainBench,
    engine: TrainEngine,
    saved: dict[str, Tensor],
    norms: list[float],
    wanted: dict[str, Tensor],
    where: str,
) -> None:
    same(f"weights sent after load_state {where}", bench.sent(engine, 2), saved)
    got = [_step(bench, engine, step) for step in (3, 4)]
    expect(got == norms, f"gradient norms of two steps {where}: expected {norms}, got {got}")
    same(f"weights two steps after load_state {where}", bench.sent(engine, 4), wanted)


def _step(bench: TrainBench, engine: TrainEngine, number: int) -> float:
    return engine.train_step(bench.batch(seed=number), PolicyGradient()).grad_norm


def _scores(bench: TrainBench, engine: TrainEngine) -> Tensor:
    column: Tensor = engine.forward(bench.batch(seed=77), LOGPROBS).tokens["logprobs"]
    return column


def _along(deltas: Mapping[str, Tensor], gradient: Mapping[str, Tensor], names: tuple[str, ...]) -> float:
    """Return how far the targets went against the model's gradient."""
    return -sum(float((delta * gradient[name]).sum()) for name, delta in deltas.items() if is_target(name, names))
