"""bfloat16, and activations computed twice: abilities that may change speed and rounding, and nothing else.

Knows: `precision.bfloat16` and `memory.activation_checkpointing`.
Does not know: how they are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import SCORES, close, number, same, weights_close
from areal_conformance.oracles.train_experts import KIND as MIXTURE
from areal_conformance.oracles.train_experts import RoutedOracle
from areal_conformance.oracles.train_images import KIND as SEEING
from areal_conformance.oracles.train_images import SeeingOracle, showing
from areal_conformance.oracles.train_optimizer import SCALED
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, OptimizerSpec, Output
from areal_torch.testing.objectives import PolicyGradient

SPEC, ENGINES = "train#areal_core.contract.train.TrainSpec", "train#training-engines-and-objectives"
BFLOAT16 = ("precision.bfloat16",)
CHECKPOINTING = ("memory.activation_checkpointing",)
USUAL, WORST = 0.05, 0.4
"""How far a column of a run in bfloat16 may be from float64, on average and at one token."""
LOSS, NORM = 0.03, 0.1
"""How far its loss may be, as a part of 1 more than the loss, and its gradient norm, as a part of the norm."""
MOVED = 0.2
"""Share of a weight that fifty steps far below bfloat16's last bit have to move."""


@check("train.bfloat16.forward", level=Level.SINGLE, law=1, spec=SPEC, requires=BFLOAT16)
def bfloat16_forward(bench: TrainBench) -> None:
    """In bfloat16 the columns are float32, near the oracle's on average, and computed in bfloat16 indeed."""
    batch = bench.batch([(2, 9), (1, 14), (4, 9), (3, 20), (1, 30)])
    wanted = Oracle(bench.model(), temperature=0.9).columns(batch)
    with bench.engine(dtype="bfloat16", temperature=0.9) as engine:
        got = engine.forward(batch, SCORES)
    mask = batch.tokens["loss_mask"] & (batch.positions > 0)
    for name in (Output.LOGPROBS, Output.ENTROPY):
        column = got.tokens[name]
        expect(str(column.dtype) == "torch.float32", f"{name} is {column.dtype}, expected float32")
        gap = (column.detach().double() - wanted[name].detach()).abs()[mask]
        bench.numbers[f"{name}_gap"] = float(gap.mean())
        usual, worst = float(gap.mean()), float(gap.max())
        expect(usual < USUAL, f"{name} is {usual:.3g} from the oracle on average, at most {USUAL}")
        expect(worst < WORST, f"{name} is {worst:.3g} from the oracle at worst, at most {WORST}")
        expect(usual > 1e-5, f"{name} is that of float32 to {usual:.1g}: bfloat16 is not used")


@check("train.bfloat16.steps", level=Level.SINGLE, law=6, spec=SPEC, requires=BFLOAT16)
def bfloat16_steps(bench: TrainBench) -> None:
    """In bfloat16 loss and gradient norm are near the oracle's, of routed and seeing models too, however cut."""
    for what, claims, model, batch, oracle in _models(bench):
        wanted = oracle.gradient(batch, PolicyGradient())
        for tokens in (16384, 32):
            fields = {"dtype": "bfloat16", "max_tokens_per_microbatch": tokens}
            with bench.engine(*claims, model=model, **fields) as engine:
                told = engine.train_step(batch, PolicyGradient())
            loss = abs(told.loss - wanted.loss) / (1.0 + abs(wanted.loss))
            norm = abs(told.grad_norm - wanted.norm) / wanted.norm
            for name, gap in ((f"{what}, loss_gap", loss), (f"{what}, norm_gap", norm)):
                bench.numbers[name] = max(bench.numbers.get(name, 0.0), gap)
            expect(loss < LOSS, f"{what}: loss {told.loss}, oracle {wanted.loss}")
            expect(norm < NORM, f"{what}: gradient norm {told.grad_norm}, oracle {wanted.norm}")


def _models(bench: TrainBench) -> Iterator[tuple[str, tuple[str, ...], Path, Batch, Oracle]]:
    """Yield a model of each sort that is claimed, what it is taught, and its oracle."""
    batch = bench.batch([(2, 9), (1, 14), (4, 9), (3, 20), (1, 30)])
    yield "a dense model", (), bench.model(), batch, Oracle(bench.model())
    if bench.target.claimed("experts.replay"):  # with routes of its own one rounding may choose another expert
        model = bench.model(kind=MIXTURE)
        oracle = RoutedOracle(model)
        routed = batch.with_tokens(**{ROUTED_EXPERTS: oracle.routes(batch)})
        yield "a mixture of experts", ("experts.replay",), model, routed, oracle
    if bench.target.claimed("images"):
        model = bench.model(kind=SEEING)
        yield "a model that sees", ("images",), model, showing(), SeeingOracle(model)


@check("train.bfloat16.tiny_steps", level=Level.SINGLE, law=6, spec=SPEC, requires=BFLOAT16)
def bfloat16_tiny_steps(bench: TrainBench) -> None:
    """Steps far smaller than bfloat16 can add to a weight are not lost: fifty of them move it."""
    tiny = OptimizerSpec(lr=4e-5, weight_decay=0.0, max_grad_norm=0.0)
    with bench.engine(model=bench.model(hidden=32), dtype="bfloat16", optimizer=tiny) as engine:
        before = bench.sent(engine)
        batch = bench.batch([(2, 9), (1, 14)])
        for _ in range(50):
            engine.train_step(batch, PolicyGradient())
        after = bench.sent(engine)
    for name, tensor in before.items():
        if tensor.ndim < 2 or "embed" in name or "lm_head" in name:
            continue  # norms lie near 1, where even this much is little; most rows of an embedding have no gradient
        moved = float((after[name] != tensor).float().mean())
        expect(moved > MOVED, f"after 50 steps of 4e-5, {moved:.1%} of {name} moved; the rest was rounded away")


@check("train.bfloat16.sent", level=Level.SINGLE, law=7, spec=SPEC, requires=BFLOAT16)
def bfloat16_sent(bench: TrainBench) -> None:
    """In bfloat16 what is sent is what the engine holds, rounded to nearest, tensor by tensor."""
    with bench.engine(dtype="bfloat16") as engine:
        for seed in range(2):
            engine.train_step(bench.batch(seed=seed), PolicyGradient())
            held = {name: tensor.to(torch.bfloat16) for name, tensor in bench.witnessed(engine).items()}
            same("sent in bfloat16", bench.sent(engine), held)


@check("train.checkpointing.same", level=Level.SINGLE, law=6, spec=ENGINES, requires=CHECKPOINTING)
def checkpointing(bench: TrainBench) -> None:
    """With activations computed twice, columns, losses, norms and weights are those computed once."""
    batch = bench.batch()
    results = []
    for claims in ((), CHECKPOINTING):
        with bench.engine(*claims, optimizer=SCALED, max_tokens_per_microbatch=18) as engine:
            told = [engine.train_step(bench.batch(seed=seed), PolicyGradient()) for seed in range(2)]
            scored = engine.forward(batch, SCORES)
            results.append((told, scored, bench.witnessed(engine)))
    (once, scored_once, weights_once), (twice, scored_twice, weights_twice) = results
    for left, right in zip(twice, once, strict=True):
        number(bench, "loss", left.loss, right.loss, atol=1e-6, rtol=1e-5)
        number(bench, "gradient norm", left.grad_norm, right.grad_norm, atol=1e-6, rtol=1e-5)
    for name in sorted(SCORES):
        close(bench, name, scored_twice.tokens[name], scored_once.tokens[name], atol=2e-5)
    weights_close(bench, "weights after two steps", weights_twice, weights_once, atol=2e-5)


@check("train.checkpointing.recomputed", level=Level.SINGLE, law=8, spec="train#recomputation", requires=CHECKPOINTING)
def recomputed(bench: TrainBench) -> None:
    """Activations are computed again and not kept: a step computes more than without, whichever of them it keeps."""
    counts = []
    for claims in ((), CHECKPOINTING):
        with bench.engine(*claims) as engine, _Operations() as operations:
            engine.train_step(bench.batch(), PolicyGradient())
        counts.append(operations.count)
    without, with_it = counts
    if not without:
        raise Inconclusive("no operation of torch was seen in this process")
    bench.numbers["operations"] = with_it / without
    told = f"a step makes {without} operations as it is, {with_it} with {CHECKPOINTING[0]}"
    expect(with_it > without, f"{told}: nothing is computed again, so everything is kept")


_MOVES = ("detach", "clone", "_to_copy", "copy_", "lift_fresh", "empty", "empty_like", "empty_strided", "ones_like")
"""Operations that compute nothing: they keep, move, or make room for what was computed."""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is not typed
    """Counts what is computed by torch; neither views nor copies."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any: torch's own."""
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        self.count += not views and func.overloadpacket.__name__ not in _MOVES
        return func(*args, **(kwargs or {}))
