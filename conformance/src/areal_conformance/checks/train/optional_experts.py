"""Claim `experts.replay`: recorded routes decide which experts compute what is said of a token.

Knows: what scores and gradients must be with given routes, by transformers with its routers forced; how a column of
routes can be wrong.
Does not know: how routes are recorded, or how an engine runs experts.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.train import Shape, TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import SCORES, close, columns_close, same, scored, slopes_close
from areal_conformance.oracles.train_experts import FAMILIES, KIND, RoutedOracle
from areal_conformance.outcome import expect, raises
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import claimed
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, BatchError, CapabilityError
from areal_core.contract.train import ROUTED_EXPERTS, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

CLAIM = ("experts.replay",)
ATOL = 1e-4
_check = partial(check, level=Level.SINGLE, spec="train#experts", requires=CLAIM, since=(1, 1))
ROUNDING = 2e-5
"""How far the log-prob of a token may move in float32 when others go through its experts with it, or no longer do."""
A_FAMILY = 2
"""Models drawn of each family; gates that are normalised and such that are not are among them."""
SHAPES: tuple[Shape, ...] = ((2, 3), (1, 5), (4, 9), (3, 1), "0110100", (1, 1), (5, 7), "0")


def oracle_of(bench: TrainBench, **arguments: Any) -> tuple[Any, RoutedOracle]:
    """Return a tiny mixture-of-experts model and its oracle. Any: a path, and the arguments of `make_tiny_model`."""
    model = bench.model(kind=KIND, **arguments)
    return model, RoutedOracle(model)


def routed(batch: Batch, routes: Tensor) -> Batch:
    """Return the batch with these routes."""
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


@_check("train.experts.free", law=1)
def free(bench: TrainBench) -> None:
    """Without recorded routes a mixture of experts is scored as transformers does; its routers choose."""
    for tied in (True, False):
        model, oracle = oracle_of(bench, tied=tied)
        batch = bench.batch(SHAPES)
        with bench.engine(*CLAIM, model=model) as engine:
            scored(bench, f"with free routes, {'tied' if tied else 'untied'}", engine, oracle, batch, atol=ATOL)


@_check("train.experts.recorded", law=1)
def recorded(bench: TrainBench) -> None:
    """Recorded routes are obeyed: what the routers would choose changes nothing, other experts give other scores."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=1)
    own = routed(batch, oracle.routes(batch))
    with bench.engine(*CLAIM, model=model) as engine:
        got = engine.forward(own, SCORES)
        columns_close(bench, "with the routes the routers choose", got, oracle.columns(batch), atol=ATOL)
        for number in range(3):
            forced = routed(batch, oracle.random_routes(batch.num_tokens, number))
            scored(bench, f"with drawn routes {number}", engine, oracle, forced, atol=ATOL)


@_check("train.experts.with_tokens", law=6)
def with_tokens(bench: TrainBench) -> None:
    """Routes stay with their tokens through micro-batches and in any order of sequences."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=2)
    batch = routed(batch, oracle.random_routes(batch.num_tokens, 9))
    orders = (list(range(len(SHAPES))), [6, 2, 0, 7, 5, 1, 4, 3], list(reversed(range(len(SHAPES)))), [3])
    for budget in (13, 20, 16384):
        with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=budget) as engine:
            for rows in orders:
                what = f"of sequences {rows}, {budget} tokens a micro-batch"
                scored(bench, what, engine, oracle, batch.select(rows), atol=ATOL)


@_check("train.experts.own_row", law=1)
def own_row(bench: TrainBench) -> None:
    """Row t is of the pass token t was drawn from: it decides what is said of token t and later ones, and no other."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(["01111111", "0111111"], seed=3)
    base = oracle.random_routes(batch.num_tokens, 4)
    rounding = bench.tolerance(atol=ROUNDING).atol
    with bench.engine(*CLAIM, model=model) as engine:
        before = engine.forward(routed(batch, base), SCORES).tokens["logprobs"]
        for token in range(8):
            other = base.clone()
            other[token] = (other[token] + 1) % oracle.num_experts
            after = engine.forward(routed(batch, other), SCORES).tokens["logprobs"]
            changed = ((after - before).abs() > rounding).nonzero().flatten().tolist()
            odd = [place for place in changed if place < token or place > 7 or token == 0]
            expect(not odd, f"other experts in row {token} changed what is said of tokens {odd}")
            told = f"other experts in row {token} did not change what is said of token {token}"
            expect(token == 0 or token in changed, told)


@_check("train.experts.row_order", law=1)
def row_order(bench: TrainBench) -> None:
    """The order in which a row names its experts does not matter."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=4)
    routes = oracle.random_routes(batch.num_tokens, 5)
    with bench.engine(*CLAIM, model=model) as engine:
        straight = engine.forward(routed(batch, routes), SCORES).tokens["logprobs"]
        turned = engine.forward(routed(batch, routes.flip(-1)), SCORES).tokens["logprobs"]
    close(bench, "log-probs with every row's experts in reverse", turned, straight, atol=ROUNDING)


@_check("train.experts.not_recorded", law=1)
def not_recorded(bench: TrainBench) -> None:
    """A row of -1 is routed freely, its neighbours as recorded; nothing is kept for the next batch."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=5)
    routes = oracle.random_routes(batch.num_tokens, 6)
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(batch.num_tokens, generator=generator) < 0.5
    whole = batch.sequence_ids % 2 == 0
    layers = torch.zeros_like(routes[..., 0], dtype=torch.bool)
    layers[:, 0] = some
    with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=20) as engine:
        for what, rows in (("every second", some[:, None]), ("whole sequences", whole[:, None]), ("one layer", layers)):
            mixed = routed(batch, torch.where(rows[..., None], -1, routes))
            scored(bench, f"with rows of -1: {what}", engine, oracle, mixed, atol=ATOL)
        wanted = oracle.columns(batch)
        got = engine.forward(routed(batch, torch.full_like(routes, -1)), SCORES)
        columns_close(bench, "where nothing was recorded", got, wanted, atol=ATOL)
        got = engine.forward(batch, SCORES)
        columns_close(bench, "without routes, after batches with them", got, wanted, atol=ATOL)


@_check("train.experts.gradient", law=6)
def gradient(bench: TrainBench) -> None:
    """A step on recorded routes follows the gradient of the recorded experts, the routers' own included."""
    model, oracle = oracle_of(bench)
    whole = bench.batch(SHAPES, seed=6)
    routes = oracle.random_routes(whole.num_tokens, 7)
    routes[whole.sequence_ids == 3] = -1
    forced = routed(whole, routes)
    for budget, batch in ((16384, forced), (16, forced), (16384, whole)):
        routes_are = "forced" if batch is forced else "free"
        slopes_close(bench, routes_are, model, oracle, batch, *CLAIM, budget)


@_check("train.experts.gates", law=1)
def gates(bench: TrainBench) -> None:
    """Recorded experts are weighed as the model weighs its own, gates normalised or not, in scores and steps."""
    for normalised in (True, False):
        model = bench.folder / f"normalised-{normalised}"
        shutil.copytree(bench.model(kind=KIND), model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "norm_topk_prob": normalised}))
        oracle, batch = RoutedOracle(model), bench.batch(SHAPES, seed=8)
        forced = routed(batch, oracle.random_routes(batch.num_tokens, 3))
        told = "gates that are normalised" if normalised else "gates as they are"
        with bench.engine(*CLAIM, model=model) as engine:
            for what, each in (("recorded", forced), ("free", batch)):
                scored(bench, f"with {told}, routes {what}", engine, oracle, each, atol=ATOL)
        slopes_close(bench, told, model, oracle, forced, *CLAIM, 16384)


@_check("train.experts.families", law=1, deadline_s=120.0)
def families(bench: TrainBench) -> None:
    """Recorded experts are weighed as each family that is taken weighs its own, or a family's routes are refused."""
    for drawn in (each for family in FAMILIES for each in islice(claimed(bench.target, family), A_FAMILY)):
        model, batch = folder_of(drawn), bench.batch(SHAPES, seed=drawn.seed)
        oracle = RoutedOracle(model)
        forced = routed(batch, oracle.random_routes(batch.num_tokens, drawn.seed))
        try:
            with bench.engine(*CLAIM, model=model) as engine:
                scored(bench, f"with recorded routes of {drawn}", engine, oracle, forced, atol=ATOL)
        except CapabilityError as error:
            expect(drawn.architecture not in bench.target.adapter.models, f"routes of {drawn} are refused: {error}")
            bench.notes.append(f"routes of {drawn.architecture} are refused")
            continue
        slopes_close(bench, str(drawn), model, oracle, forced, *CLAIM, 16384)


@_check("train.experts.kept", law=1)
def kept(bench: TrainBench) -> None:
    """`forward` gives the recorded routes back as they came, with -1 where nothing was recorded."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=7)
    routes = oracle.random_routes(batch.num_tokens, 8)
    routes[::3] = -1
    given = routed(batch, routes.clone())
    with bench.engine(*CLAIM, model=model) as engine:
        result = engine.forward(given, SCORES)
    for what, held in (("the batch returned", result), ("the batch given", given)):
        same_routes = ROUTED_EXPERTS in held.tokens and torch.equal(held.tokens[ROUTED_EXPERTS], routes)
        expect(same_routes, f"{what} does not hold the routes it came with")


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


@_check("train.experts.refused", law=8)
def refused(bench: TrainBench) -> None:
    """Routes of another shape, of no expert, of one expert twice, or torn are a BatchError, and change nothing."""
    model, oracle = oracle_of(bench)
    batch = bench.batch([(2, 3), (4, 9), (1, 5)])
    with bench.engine(*CLAIM, model=model) as engine:
        before = bench.sent(engine)
        scores = engine.forward(batch, SCORES).tokens["logprobs"]
        for what, routes in _unfit(oracle, batch.num_tokens).items():
            _refused(engine, routed(batch, routes), BatchError, what)
        same("weights after refused routes", bench.sent(engine), before)
        again = engine.forward(batch, SCORES).tokens["logprobs"]
        same("scores after refused routes", {"logprobs": again}, {"logprobs": scores})


@_check("train.experts.dense", law=8)
def dense(bench: TrainBench) -> None:
    """Routes for a model without experts are refused: they were recorded by another model."""
    _, oracle = oracle_of(bench)
    batch = bench.batch([(2, 3), (4, 9)])
    wrong = routed(batch, oracle.random_routes(batch.num_tokens, 1))
    with bench.engine(*CLAIM) as engine:
        _refused(engine, wrong, ArealError, "routes on a dense model")


def _refused(engine: TrainEngine, batch: Batch, kind: type[ArealError], what: str) -> None:
    """Expect a typed error with a reason, of scoring and of training."""
    for call, argument in (("forward", SCORES), ("train_step", PolicyGradient())):
        error = raises(kind, f"{call} with {what}", partial(getattr(engine, call), batch, argument))
        expect(error.why or error.fix, f"{what}: the error does not say why: {error.what}")
