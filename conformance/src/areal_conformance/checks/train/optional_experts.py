"""Claim `experts.replay`: recorded routes decide which experts compute what is said of a token.

Knows: what scores and gradients must be with given routes, by transformers with its routers forced.
Does not know: how routes are recorded, or how an engine runs experts. Refusals are in `optional_experts_refused`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.train import Shape, TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import close
from areal_conformance.oracles.train_experts import KIND, RoutedOracle
from areal_conformance.oracles.train_specs import DESCENT
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, Output
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#experts"
CLAIM = ("experts.replay",)
SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})
ATOL = 1e-4
SHAPES: tuple[Shape, ...] = ((2, 3), (1, 5), (4, 9), (3, 1), "0110100", (1, 1), (5, 7), "0")


def oracle_of(bench: TrainBench, **arguments: Any) -> tuple[Any, RoutedOracle]:
    """Return a tiny mixture-of-experts model and its oracle. Any: a path, and the arguments of `make_tiny_model`."""
    model = bench.model(kind=KIND, **arguments)
    return model, RoutedOracle(model)


def routed(batch: Batch, routes: Tensor) -> Batch:
    """Return the batch with these routes."""
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


@check("train.experts.free", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
def free(bench: TrainBench) -> None:
    """Without recorded routes a mixture of experts is scored as transformers does; its routers choose."""
    for tied in (True, False):
        model, oracle = oracle_of(bench, tied=tied)
        batch = bench.batch(SHAPES)
        with bench.engine(*CLAIM, model=model) as engine:
            got = engine.forward(batch, SCORES).tokens
        for name, wanted in oracle.columns(batch).items():
            close(bench, f"{name} with free routes, {'tied' if tied else 'untied'}", got[name], wanted, atol=ATOL)


@check("train.experts.recorded", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
def recorded(bench: TrainBench) -> None:
    """Recorded routes are obeyed: what the routers would choose changes nothing, other experts give other scores."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=1)
    own = routed(batch, oracle.routes(batch))
    with bench.engine(*CLAIM, model=model) as engine:
        got = engine.forward(own, SCORES).tokens
        for name, wanted in oracle.columns(batch).items():
            close(bench, f"{name} with the routes the routers choose", got[name], wanted, atol=ATOL)
        for number in range(3):
            forced = routed(batch, oracle.random_routes(batch.num_tokens, number))
            got = engine.forward(forced, SCORES).tokens
            for name, wanted in oracle.columns(forced).items():
                close(bench, f"{name} with drawn routes {number}", got[name], wanted, atol=ATOL)


@check("train.experts.with_tokens", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 1))
def with_tokens(bench: TrainBench) -> None:
    """Routes stay with their tokens through micro-batches and in any order of sequences."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=2)
    batch = routed(batch, oracle.random_routes(batch.num_tokens, 9))
    orders = (list(range(len(SHAPES))), [6, 2, 0, 7, 5, 1, 4, 3], list(reversed(range(len(SHAPES)))), [3])
    for budget in (13, 20, 16384):
        with bench.engine(*CLAIM, model=model, max_tokens_per_microbatch=budget) as engine:
            for rows in orders:
                chosen = batch.select(rows)
                got = engine.forward(chosen, SCORES).tokens
                for name, wanted in oracle.columns(chosen).items():
                    what = f"{name} of sequences {rows}, {budget} tokens a micro-batch"
                    close(bench, what, got[name], wanted, atol=ATOL)


@check("train.experts.own_row", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
def own_row(bench: TrainBench) -> None:
    """Row t is of the pass token t was drawn from: it decides what is said of token t and later ones, and no other."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(["01111111", "0111111"], seed=3)
    base = oracle.random_routes(batch.num_tokens, 4)
    with bench.engine(*CLAIM, model=model) as engine:
        before = engine.forward(routed(batch, base), SCORES).tokens["logprobs"]
        for token in range(8):
            other = base.clone()
            other[token] = (other[token] + 1) % oracle.num_experts
            after = engine.forward(routed(batch, other), SCORES).tokens["logprobs"]
            changed = ((after - before).abs() > 1e-6).nonzero().flatten().tolist()
            odd = [place for place in changed if place < token or place > 7 or token == 0]
            expect(not odd, f"other experts in row {token} changed what is said of tokens {odd}")
            expect(
                token == 0 or token in changed,
                f"other experts in row {token} did not change what is said of token {token}",
            )


@check("train.experts.row_order", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
def row_order(bench: TrainBench) -> None:
    """The order in which a row names its experts does not matter."""
    model, oracle = oracle_of(bench)
    batch = bench.batch(SHAPES, seed=4)
    routes = oracle.random_routes(batch.num_tokens, 5)
    with bench.engine(*CLAIM, model=model) as engine:
        straight = engine.forward(routed(batch, routes), SCORES).tokens["logprobs"]
        turned = engine.forward(routed(batch, routes.flip(-1)), SCORES).tokens["logprobs"]
    close(bench, "log-probs with every row's experts in reverse", turned, straight, atol=2e-5)


@check("train.experts.not_recorded", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
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
            got = engine.forward(mixed, SCORES).tokens
            close(
                bench,
                f"log-probs with rows of -1: {what}",
                got["logprobs"],
                oracle.columns(mixed)[Output.LOGPROBS],
                atol=ATOL,
            )
        got = engine.forward(routed(batch, torch.full_like(routes, -1)), SCORES).tokens
        wanted = oracle.columns(batch)[Output.LOGPROBS]
        close(bench, "log-probs where nothing was recorded", got["logprobs"], wanted, atol=ATOL)
        got = engine.forward(batch, SCORES).tokens
        close(bench, "log-probs without routes, after batches with them", got["logprobs"], wanted, atol=ATOL)


@check("train.experts.gradient", level=Level.SINGLE, law=6, spec=SPEC, requires=CLAIM, since=(1, 1))
def gradient(bench: TrainBench) -> None:
    """A step on recorded routes follows the gradient of the recorded experts, the routers' own included."""
    model, oracle = oracle_of(bench)
    base = read_folder(model)
    whole = bench.batch(SHAPES, seed=6)
    routes = oracle.random_routes(whole.num_tokens, 7)
    routes[whole.sequence_ids == 3] = -1
    forced = routed(whole, routes)
    for budget, batch in ((16384, forced), (16, forced), (16384, whole)):
        wanted = oracle.gradient(batch, PolicyGradient())
        with bench.engine(*CLAIM, model=model, optimizer=DESCENT, max_tokens_per_microbatch=budget) as engine:
            engine.train_step(batch, PolicyGradient())
            sent = bench.sent(engine)
        expect(
            set(sent) == set(base), f"other tensors are sent than the folder has: {sorted(set(sent) ^ set(base))[:4]}"
        )
        for name, slope in wanted.items():
            made = base[name].double() - sent[name].double()
            what = f"the gradient of {name}, {budget} tokens a micro-batch, {'forced' if batch is forced else 'free'}"
            close(bench, what, made, slope, atol=2e-4, rtol=5e-3)


@check("train.experts.kept", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIM, since=(1, 1))
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
        expect(
            ROUTED_EXPERTS in held.tokens and torch.equal(held.tokens[ROUTED_EXPERTS], routes),
            f"{what} does not hold the routes it came with",
        )
