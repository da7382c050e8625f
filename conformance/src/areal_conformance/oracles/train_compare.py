"""How checks of train engines compare: tensors and named weights, with a message that says where they differ.

Knows: tolerances of the bench.
Does not know: what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_conformance.benches.base import Bench
from areal_conformance.benches.train import TrainBench, read_folder, same_bits
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_optimizer import DESCENT
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})


def close(bench: Bench, what: str, got: Tensor, wanted: Tensor, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Expect two tensors to agree; the message names the worst place."""
    expect(got.shape == wanted.shape, f"{what}: the shape is {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    if not got.numel():
        return
    allowed = bench.tolerance(atol=atol, rtol=rtol)
    left, right = got.detach().cpu().double(), wanted.detach().cpu().double()
    excess = (left - right).abs() - (allowed.atol + allowed.rtol * right.abs())
    excess = torch.where(excess.isnan(), torch.inf, excess).reshape(-1)
    worst = int(excess.argmax())
    expect(
        excess[worst] <= 0.0,
        f"{what}: {int((excess > 0).sum())} of {excess.numel()} numbers differ; at {worst} expected "
        f"{float(right.reshape(-1)[worst]):.9g}, got {float(left.reshape(-1)[worst]):.9g} "
        f"(allowed {allowed.atol:g} + {allowed.rtol:g} of it)",
    )


def number(bench: Bench, what: str, got: float, wanted: float, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Expect two numbers to agree."""
    left, right = (torch.tensor(each, dtype=torch.float64) for each in (got, wanted))
    close(bench, what, left, right, atol=atol, rtol=rtol)


def scored(
    bench: Bench, what: str, engine: TrainEngine, oracle: Oracle, batch: Batch, *, atol: float, rtol: float = 0.0
) -> None:
    """Expect an engine to give the oracle's log-probs and entropy of a batch."""
    columns_close(bench, what, engine.forward(batch, SCORES), oracle.columns(batch), atol=atol, rtol=rtol)


def columns_close(
    bench: Bench, what: str, got: Batch, wanted: Mapping[Output, Tensor], *, atol: float, rtol: float = 0.0
) -> None:
    """Expect the columns of a scored batch to agree with these."""
    for name in sorted(wanted):
        close(bench, f"{name} {what}", got.tokens[name], wanted[name], atol=atol, rtol=rtol)


def weights_close(
    bench: Bench,
    what: str,
    got: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    atol: float,
    where: Mapping[str, Tensor] | None = None,
) -> None:
    """Expect the same names, and tensors that agree (only `where` it is True, if given)."""
    odd = sorted({*got} ^ {*wanted})
    expect(not odd, f"{what}: these tensors are on one side only: {', '.join(odd[:4])}")
    for name, tensor in wanted.items():
        mask = torch.ones_like(tensor, dtype=torch.bool) if where is None else where[name]
        close(bench, f"{what}: {name}", got[name].cpu()[mask], tensor[mask], atol=atol)


def slopes_close(
    bench: TrainBench, what: str, model: Path, oracle: Oracle, batch: Batch, claim: str, budget: int
) -> None:
    """Expect a step of a claimed ability to subtract the oracle's gradient from every tensor of the folder."""
    base = read_folder(model)
    with bench.engine(claim, model=model, optimizer=DESCENT, max_tokens_per_microbatch=budget) as engine:
        engine.train_step(batch, PolicyGradient())
        sent = bench.sent(engine)
    odd = sorted(set(sent) ^ set(base))
    expect(not odd, f"other tensors are sent than the folder has: {odd[:4]}")
    for name, slope in oracle.gradient(batch, PolicyGradient()).by_name.items():
        made = base[name].double() - sent[name].double()
        where = f"the gradient of {name}, {budget} tokens a micro-batch, {what}"
        close(bench, where, made, slope, atol=2e-4, rtol=5e-3)


def same(what: str, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Expect the same names with the same bits."""
    wrong = same_bits(got, wanted)
    expect(not wrong, f"{what}: {len(wrong)} of {len(wanted)} tensors differ: {', '.join(wrong[:4])}")
