"""Claim `experts.replay`: routes the model cannot have taken are refused, in scoring and in training.

Knows: the ways a column of routes can be wrong.
Does not know: what right routes give (`optional_experts`).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.optional_experts import CLAIM, SCORES, SPEC, oracle_of, routed
from areal_conformance.oracles.train_compare import raises, same
from areal_conformance.oracles.train_experts import RoutedOracle
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, BatchError
from areal_torch.testing.objectives import PolicyGradient


def _unfit(oracle: RoutedOracle, num_tokens: int) -> dict[str, Tensor]:
    """Return routes by what is wrong with them; all but the first few only at one place."""
    right = oracle.random_routes(num_tokens, 3)
    past_end, before_start, twice, zeros, torn, twice_later = (right.clone() for _ in range(6))
    past_end[-1, -1, -1] = oracle.num_experts
    before_start[2, 0, 0] = -2
    twice[1, 0] = twice[1, 0, 0]
    twice_later[-2, -1] = twice_later[-2, -1, -1]
    zeros[3] = 0
    torn[4, -1, 0] = -1
    return {
        "one layer too few": right[:, 1:].contiguous(),
        "one layer too many": torch.cat([right, right[:, :1]], dim=1),
        "one expert too few": right[..., 1:].contiguous(),
        "one expert too many": torch.cat([right, (right[..., :1] + 1) % oracle.num_experts], dim=2),
        "layers and experts flattened": right.flatten(1),
        "numbers that are not whole": right.float() + 0.5,
        "an expert past the last": past_end,
        "an expert of -2": before_start,
        "one expert twice in a row": twice,
        "one expert twice in a row near the end": twice_later,
        "a row that was never written, all zeros": zeros,
        "a row that is -1 in part": torn,
    }


@check("train.experts.refused", level=Level.SINGLE, law=8, spec=SPEC, requires=CLAIM, since=(1, 1))
def refused(bench: TrainBench) -> None:
    """Routes of another shape, of no expert, of one expert twice, or torn are a BatchError, and change nothing."""
    model, oracle = oracle_of(bench)
    batch = bench.batch([(2, 3), (4, 9), (1, 5)])
    with bench.engine(*CLAIM, model=model) as engine:
        before = bench.sent(engine)
        scores = engine.forward(batch, SCORES).tokens["logprobs"]
        for what, routes in _unfit(oracle, batch.num_tokens).items():
            wrong = routed(batch, routes)
            for call in ("forward", "train_step"):
                arguments = (wrong, SCORES if call == "forward" else PolicyGradient())
                error = raises(BatchError, f"{call} with {what}", partial(getattr(engine, call), *arguments))
                expect(error.why or error.fix, f"{what}: the error does not say why: {error.what}")
        same("weights after refused routes", bench.sent(engine), before)
        again = engine.forward(batch, SCORES).tokens["logprobs"]
        same("scores after refused routes", {"logprobs": again}, {"logprobs": scores})


@check("train.experts.dense", level=Level.SINGLE, law=8, spec=SPEC, requires=CLAIM, since=(1, 1))
def dense(bench: TrainBench) -> None:
    """Routes for a model without experts are refused: they were recorded by another model."""
    _, oracle = oracle_of(bench)
    batch = bench.batch([(2, 3), (4, 9)])
    wrong = routed(batch, oracle.random_routes(batch.num_tokens, 1))
    with bench.engine(*CLAIM) as engine:
        for what, call in (
            ("forward", lambda: engine.forward(wrong, SCORES)),
            ("train_step", lambda: engine.train_step(wrong, PolicyGradient())),
        ):
            error = raises(ArealError, f"{what} with routes on a dense model", call)
            expect(error.why or error.fix, f"{what}: the error does not say why: {error.what}")
