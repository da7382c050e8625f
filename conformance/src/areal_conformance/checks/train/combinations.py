"""Settings together that are right one by one: temperature under pipelines, heads under context ranks, and all others.

Knows: the settings that change a result, those that may not, and which layouts there are.
Does not know: how rows are chosen (`oracles.combinations`), or what an engine computes.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.precision import CHECKPOINTING
from areal_conformance.checks.train.relations import ACTOR, ADAPTER, CRITIC, HALF, Role
from areal_conformance.oracles.combinations import Settings, pairwise, told
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import number, weights_close
from areal_conformance.oracles.train_experts import KIND as MIXTURE
from areal_conformance.oracles.train_experts import RoutedOracle
from areal_conformance.oracles.train_images import KIND as SEEING
from areal_conformance.oracles.train_images import showing
from areal_conformance.oracles.train_optimizer import SCALED, OracleTrainer
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import UNEVEN, close, layouts, named, same_report, same_weights
from areal_conformance.zoo.architectures import ARCHITECTURES, config_of
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import claimed as claimed_models
from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, Head, Objective
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

ENGINES = "train#training-engines-and-objectives"
HEADS = ((4, 2), (4, 4), (8, 2))
"""Heads of queries, and of keys and values."""
HEATS = (1.0, 0.6, 1.7)


def kinds(bench: TrainBench) -> tuple[str, ...]:
    """Return the kinds of tiny model without experts or images."""
    return tuple(kind for kind in bench.target.adapter.models if "moe" not in kind and "vl" not in kind)


def made(row: Settings) -> dict[str, Any]:
    """Return the arguments of the tiny model of a row. Any: as `make_tiny_model` has them."""
    heads, kv_heads = row["heads"]
    return {"kind": row["kind"], "tied": row["tied"], "heads": heads, "kv_heads": kv_heads}


@check("train.combined.values", level=Level.SINGLE, law=6, spec=ENGINES, deadline_s=120.0)
def values(bench: TrainBench) -> None:
    """Kind, tied head, heads, temperature, budget, role and recomputation together train what the oracle trains."""
    claimed = bench.target.claimed
    rows = pairwise(
        {
            "kind": kinds(bench),
            "tied": (True, False),
            "heads": HEADS,
            "temperature": HEATS,
            "head": (Head.CAUSAL_LM, Head.VALUE) if claimed("head.value") else (Head.CAUSAL_LM,),
            "recomputed": (False, True) if claimed(*CHECKPOINTING) else (False,),
            "budget": (16384, 20),
        }
    )
    for place, row in enumerate(rows):
        model, head, temperature = bench.model(**made(row)), row["head"], row["temperature"]
        objective: Objective = PolicyGradient() if head is Head.CAUSAL_LM else ValueRegression()
        claims = CHECKPOINTING if row["recomputed"] else ()
        fields = {"head": head, "temperature": temperature, "max_tokens_per_microbatch": row["budget"]}
        with bench.engine(*claims, model=model, optimizer=SCALED, **fields) as engine:
            begun = bench.folder / f"begun-{place}"
            engine.save_weights(begun)  # a new head is the engine's own to draw
            trainer = OracleTrainer(Oracle(begun, head=head, temperature=temperature), SCALED)
            for step in range(2):
                batch = bench.batch(seed=step)
                trainer.step(batch, objective)
                report = engine.train_step(batch, objective)
                where = f"of step {step}, {told(row)}"
                number(bench, f"the loss {where}", report.loss, trainer.loss, atol=2e-5, rtol=2e-5)
                number(bench, f"the gradient norm {where}", report.grad_norm, trainer.norm, atol=1e-5, rtol=2e-4)
            weights_close(bench, f"weights after two steps, {told(row)}", bench.witnessed(engine), trainer.weights,
                          atol=5e-5)  # fmt: skip


@check("train.combined.recomputed", level=Level.SINGLE, law=6, spec=ENGINES, requires=CHECKPOINTING)
def recomputed(bench: TrainBench) -> None:
    """Critics, adapters, bfloat16, recorded routes and images train the same with activations computed twice."""
    claimed = bench.target.claimed
    half = evolve(ADAPTER, fields={**ADAPTER.fields, "dtype": "bfloat16"})
    routes = evolve(ACTOR, fields={"model": bench.model(kind=MIXTURE)}, claims=("experts.replay",))
    seeing = {"model": bench.model(kind=SEEING), "max_tokens_per_microbatch": 26}
    found: dict[str, tuple[tuple[str, ...], Role]] = {
        "an actor": ((), ACTOR),
        "a critic": (("head.value",), CRITIC),
        "an adapter": (("lora",), ADAPTER),
        "an actor in bfloat16": (("precision.bfloat16",), HALF),
        "an adapter in bfloat16": (("lora", "precision.bfloat16"), half),
        "an actor on recorded routes": (routes.claims, routes),
        "an actor that sees": (("images",), evolve(ACTOR, fields=seeing, claims=("images",))),
    }
    for who, role in [(who, role) for who, (needed, role) in found.items() if all(map(claimed, needed))]:
        ends = []
        for claims in ((), CHECKPOINTING):
            fields = {"optimizer": SCALED, "max_tokens_per_microbatch": 20, "temperature": 0.7, **role.fields}
            with bench.engine(*role.claims, *claims, **fields) as engine:
                reports = [engine.train_step(_lesson(bench, role, step), role.objective()) for step in range(3)]
                ends.append((reports, bench.witnessed(engine)))
        (once, weights_once), (twice, weights_twice) = ends
        for step, (left, right) in enumerate(zip(twice, once, strict=True)):
            number(bench, f"the loss of step {step} of {who}", left.loss, right.loss, atol=1e-5, rtol=1e-5)
            expect(right.grad_norm > 0, f"{who} has no gradient")
            number(bench, f"the norm of step {step} of {who}", left.grad_norm, right.grad_norm, atol=1e-5, rtol=1e-4)
        weights_close(bench, f"weights of {who} after three steps", weights_twice, weights_once, atol=2e-5)


def _lesson(bench: TrainBench, role: Role, step: int) -> Batch:
    """Return what a role is taught, with what its claims are about."""
    if "images" in role.claims:
        return showing(seed=step)
    batch = bench.batch(seed=step)
    if "experts.replay" not in role.claims:
        return batch
    routes = RoutedOracle(bench.model(kind=MIXTURE)).random_routes(batch.num_tokens, step)
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


@check("train.combined.drawing", level=Level.SINGLE, law=6, spec="train#models", requires=CHECKPOINTING)
def drawing(bench: TrainBench) -> None:
    """Models whose config.json has dropouts, by whatever name, draw nothing with activations computed twice either."""
    tried = set[frozenset[str]]()
    for model in (one for architecture in ARCHITECTURES for one in claimed_models(bench.target, architecture)):
        names = frozenset(name for name in config_of(model) if "drop" in name or "noise" in name)
        if model["dropout"] != "half" or names in tried:
            continue
        tried.add(names)
        ends = []
        for claims in ((), CHECKPOINTING):
            with bench.engine(*claims, model=folder_of(model), optimizer=SCALED) as engine:
                engine.train_step(bench.batch(), PolicyGradient())
                ends.append(bench.witnessed(engine))
        weights_close(bench, f"a step of {model} with activations computed twice", ends[1], ends[0], atol=2e-5)


@check(
    "train.combined.ranks",
    level=Level.DISTRIBUTED,
    law=6,
    spec="train#train_step",
    requires=("parallel.data",),
    ranks=2,
    deadline_s=180.0,
)
def ranks(bench: TrainBench) -> None:
    """In every layout, kind, tied head, heads, temperature, budget and clipping together train as on one rank."""
    found = layouts(bench)
    rows = pairwise(
        {
            "layout": found,
            "kind": kinds(bench)[:2],
            "heads": HEADS[1:],
            "temperature": HEATS[1:],
            "tied": (True, False),
            "budget": (16384, 30),
            "clipped": (0.0, 0.02),
        }
    )
    for row in rows:
        given = {
            "layout": row["layout"],
            "plans": [UNEVEN],
            "model": {**made(row), "vocab_size": 64},
            "optimizer": {"max_grad_norm": row["clipped"]},
            "spec": {"temperature": row["temperature"], "max_tokens_per_microbatch": row["budget"]},
        }
        answers = bench.on_ranks("areal_conformance.ranks.steps:train", 2, **given)
        for step, expected in enumerate(answers[0]["alone"]):
            same_report(bench, row["layout"], expected, answers[0]["reports"][step], f"step {step}, {told(row)}")
        close(1.0, float(answers[0]["moved"] > 1e-5), 0.0, 0.0, f"layout {named(row['layout'])}: whether weights moved")
        same_weights(bench, row["layout"], answers[0], told(row))
