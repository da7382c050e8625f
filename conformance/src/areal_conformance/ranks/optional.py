"""Programs of optional abilities on several ranks, and on one to compare with.

Knows: how to train with an adapter, with recorded routes, on images, and moved away between steps.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_conformance.oracles.train_experts import KIND, RoutedOracle
from areal_conformance.oracles.train_images import DEEPER, showing
from areal_conformance.oracles.train_objectives import OfCandidates
from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, once, shard, union_of
from areal_conformance.ranks.bench import RankBench
from areal_conformance.ranks.faults import full_disk
from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError, LayoutError, ModelError
from areal_core.contract.train import CANDIDATES, ROUTED_EXPERTS, LoraSpec, Objective, Output, TrainEngine
from areal_torch.testing.batches import VOCAB_SIZE
from areal_torch.testing.models import WITH_IMAGES
from areal_torch.testing.objectives import PolicyGradient

LOGPROBS = frozenset({Output.LOGPROBS})
SIZES = (((2, 3), (1, 1)), (), (), ((1, 2),), ((2, 2),), (), (), ((1, 3), (1, 1)))
"""Height and width in tokens of the images of each sequence: those of the second even share have none."""
Between = Callable[[Any], None]  # Any: an engine with optional methods


def _logprobs(engine: TrainEngine, batch: Batch) -> Tensor:
    column: Tensor = engine.forward(batch, LOGPROBS).tokens["logprobs"]
    return column


@frozen(kw_only=True)
class Calls:
    """What is asked of the engines: an objective to step on, and numbers [T, ...] of each token."""

    objective: Callable[[], Objective] = PolicyGradient
    score: Callable[[TrainEngine, Batch], Tensor] = _logprobs


ADAPTER = LoraSpec(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))


def lora(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Train an adapter."""
    return _compared(bench, layout, plans, "lora", fields={"lora": ADAPTER})


def adapter(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Train an adapter and send it alone."""
    return _compared(bench, layout, plans, "weights.adapter", fields={"lora": ADAPTER, "send_adapter": True})


def experts(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Train a mixture of experts on drawn routes, but first on two tokens that need a half of the experts each time.

    Ranks that share experts have nothing to do then, one after the other.
    """
    model = bench.model(kind=KIND)
    oracle = RoutedOracle(model)
    halves = (0, oracle.num_experts // 2)

    def draw(number: int) -> Batch:
        if number >= len(halves):
            return _batch(bench, number - len(halves), oracle)
        batch = oracle.one_sided(lambda seed: bench.batch([(1, 1)], seed=seed), halves[number])
        return batch.with_sequences(number=torch.arange(1))

    plans = [*([[0], []] for _ in halves), *plans]
    return _compared(bench, layout, plans, "experts.replay", fields={"model": model}, draw=draw, scored=len(halves))


def images(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Train on images, also of the kind that goes deeper if it is taken; in some plans one data rank is shown none."""

    def draw(number: int) -> Batch:
        return showing(SIZES, seed=number).with_sequences(number=torch.arange(len(SIZES)))

    kinds = (WITH_IMAGES, DEEPER) if _taken(bench, layout, DEEPER) else (WITH_IMAGES,)
    models = [bench.model(kind=kind) for kind in kinds]
    return _joined([_compared(bench, layout, plans, "images", fields={"model": each}, draw=draw) for each in models])


def _taken(bench: RankBench, layout: dict[str, int], kind: str) -> bool:
    """Tell whether these ranks take a kind of model; they may refuse what another engine of their claim has."""
    engine: TrainEngine = bench.build("images")
    spec = bench.spec("images", model=bench.model(kind=kind), layout=layout)
    try:
        engine.start(spec, bench.rank_context())
    except (ModelError, CapabilityError, LayoutError):
        return False
    finally:
        engine.close()
    return True


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what several comparisons gave as one. Any: as of each."""

    def of(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        scores = {
            f"{row} of {number}": each for number, part in enumerate(found) for row, each in part["scores"].items()
        }
        return {"norms": [norm for part in found for norm in part["norms"]], "scores": scores}

    whole = of(parts)
    if "alone" in parts[0]:
        worst = max(parts, key=lambda part: float(part["gap"]))
        whole |= {"alone": of([part["alone"] for part in parts]), "gap": worst["gap"], "worst": worst["worst"]}
    return whole


def candidates(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Train on candidates that a batch names; score some sequences with those, and some with the most probable."""

    def draw(number: int) -> Batch:
        batch = _batch(bench, number)
        generator = torch.Generator().manual_seed(40 + number)
        drawn = torch.randint(0, VOCAB_SIZE, (batch.num_tokens, 3), generator=generator, dtype=torch.int32)
        return batch.with_tokens(**{CANDIDATES: drawn})

    def score(engine: TrainEngine, batch: Batch) -> Tensor:
        free = batch.sequences["number"][batch.sequence_ids] % 2 == 0
        asked = torch.where(free[:, None], -1, batch.tokens[CANDIDATES])
        columns = engine.forward(batch.with_tokens(**{CANDIDATES: asked}), frozenset({Output.CANDIDATE_LOGPROBS}))
        found, judged = columns.tokens[CANDIDATES], columns.tokens[Output.CANDIDATE_LOGPROBS]
        return torch.cat([judged, found.float() * 1e-3], 1)

    call = Calls(objective=OfCandidates, score=score)
    fields = {"model": bench.model(vocab_size=VOCAB_SIZE + 3)}  # which no number of ranks divides
    return _compared(bench, layout, plans, "candidates", fields=fields, draw=draw, call=call)


def offload(bench: RankBench, layout: dict[str, int], plans: list[Rows]) -> dict[str, Any]:
    """Move everything away and back around every call."""

    def between(engine: Any) -> None:  # Any: an engine with the optional methods
        engine.offload()
        engine.onload()

    return _compared(bench, layout, plans, "memory.offload", fields={}, between=between)


def offload_full(bench: RankBench, layout: dict[str, int], rows: Rows, victim: int) -> dict[str, Any]:
    """Move everything away where no file of one rank can grow; then go on."""
    with bench.engine("memory.offload", layout=layout) as able:
        engine: Any = able  # Any: an engine with the optional methods
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.train_step(mine, PolicyGradient())
        held = bench.sent(engine)
        with full_disk(bench.rank == victim):
            error = error_of(engine.offload)
        failed = [bool(told[0]) for told in bench.share(error)]
        if any(failed) and not all(failed):  # ranks that are apart would wait for each other
            return {"error": error, "gap": [0.0, ""], "stepped": False}
        if not any(failed):
            engine.onload()
        kept = gap(held, bench.sent(engine))
        return {"error": error, "gap": kept, "stepped": engine.train_step(mine, PolicyGradient()).stepped}


def unfit_routes(bench: RankBench, layout: dict[str, int], plan: Rows, bad: int) -> dict[str, Any]:
    """Give routes of experts there are not to one rank, then right ones to all."""
    model = bench.model(kind=KIND)
    oracle = RoutedOracle(model)
    batch = _batch(bench, 0, oracle)
    with bench.engine("experts.replay", model=model, layout=layout) as engine:
        mine = shard(bench, batch, plan)
        wrong = mine
        if bench.rank == bad:
            routes = mine.tokens[ROUTED_EXPERTS].clone()
            routes[-1, -1, -1] = oracle.num_experts
            wrong = mine.with_tokens(**{ROUTED_EXPERTS: routes})
        errors = {
            "forward": error_of(lambda: engine.forward(wrong, LOGPROBS)),
            "train_step": error_of(lambda: engine.train_step(wrong, PolicyGradient())),
        }
        bench.share()  # who never comes here hangs in the call
        return {"errors": errors, "stepped": engine.train_step(mine, PolicyGradient()).stepped}


def _compared(
    bench: RankBench,
    layout: dict[str, int],
    plans: list[Rows],
    claim: str,
    *,
    fields: Mapping[str, Any],  # Any: fields of TrainSpec
    draw: Callable[[int], Batch] | None = None,
    between: Between | None = None,
    call: Calls | None = None,
    scored: int = 0,
) -> dict[str, Any]:
    """Step by each plan, on several ranks and on one, and score the batch of the plan `scored`."""
    call = call or Calls()
    batches = [draw(number) if draw else _batch(bench, number) for number in range(len(plans))]
    with bench.engine(claim, layout=layout, **fields) as engine:
        shards = [shard(bench, batch, plan) for batch, plan in zip(batches, plans, strict=True)]
        out, sent = _run(bench, engine, shards, shards[scored], call, between)
    if bench.rank != 0:
        return out

    def alone() -> tuple[dict[str, Any], dict[str, Tensor]]:
        with bench.engine(claim, **fields) as single:
            wholes = [batch.select(union_of(plan)) for batch, plan in zip(batches, plans, strict=True)]
            return _run(bench, single, wholes, wholes[scored], call, None)

    out["alone"], wanted = once(bench, f"{claim} {plans} {fields.get('model')}", alone)
    out["gap"], out["worst"] = gap(wanted, sent)
    return out


def _run(
    bench: RankBench, engine: TrainEngine, shards: list[Batch], scored: Batch, call: Calls, between: Between | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Step on every shard, score one, send."""
    norms = []
    for part in shards:
        if between is not None:
            between(engine)
        norms.append(engine.train_step(part, call.objective()).grad_norm)
    if between is not None:
        between(engine)
    columns = torch.split(call.score(engine, scored), scored.lengths.tolist())
    rows = scored.sequences["number"].tolist()
    scores = {str(row): column.flatten().tolist() for row, column in zip(rows, columns, strict=True)}
    return {"norms": norms, "scores": scores}, bench.sent(engine)


def _batch(bench: RankBench, number: int, oracle: RoutedOracle | None = None) -> Batch:
    batch = bench.batch(SHAPES, seed=number).with_sequences(number=torch.arange(len(SHAPES)))
    if oracle is None:
        return batch
    routes = oracle.random_routes(batch.num_tokens, 30 + number)
    return batch.with_tokens(**{ROUTED_EXPERTS: torch.where(batch.sequence_ids[:, None, None] == 2, -1, routes)})
