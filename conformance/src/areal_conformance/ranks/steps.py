"""Programs that start, step and score on several ranks, and on one to compare with.

Knows: how to see what a step did, rank by rank.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_conformance.oracles.train_objectives import LONG_NAME, OBJECTIVES
from areal_conformance.ranks.answers import (
    SHAPES,
    Rows,
    error_of,
    gap,
    mine_of,
    once,
    placed,
    same_columns,
    shard,
    told,
    union_of,
)
from areal_conformance.ranks.bench import OPTIMIZER, RankBench
from areal_core.contract.batch import Batch
from areal_core.contract.train import LoraSpec, Output, TrainEngine
from areal_torch.testing.batches import with_padding


def train(
    bench: RankBench,
    layout: dict[str, int],
    plans: list[Rows],
    *,
    model: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    objective: str = "gain",
    trained: list[list[int]] | None = None,
    late: int | None = None,
    sends: int = 1,
    meet: bool = False,
    shapes: list[list[int]] | None = None,
    small: str = "",
    variant: str = "",
    factor: float = 1.0,
) -> dict[str, Any]:
    """Make one step per plan; on rank 0 tell also what one rank made of the same batches.

    Args:
        trained: for each step, the sequences that are trained on; the masks of the others are cleared.
        late: the rank whose first call comes late, and in turn with the others every further one.
        sends: how often the weights are sent at the end, of which the last are told.
        meet: whether ranks wait for each other between steps, so that one that hangs is seen at once.
        shapes: prompt and generated tokens of each sequence, instead of SHAPES.
        small: what the thresholds count that are made small on several ranks; one rank by itself has them as they are.
        variant: whose options several ranks have; one rank by itself has none.
        factor: what advantages are multiplied by.
    """
    fields = {**(spec or {}), "optimizer": attrs.evolve(OPTIMIZER, **(optimizer or {}))}
    folder = bench.model(**(model or {}))
    batches = [
        _trained_on(
            with_padding(bench.batch([(a, b) for a, b in shapes] if shapes else SHAPES, seed=number)),
            None if trained is None else trained[number],
        )
        for number in range(len(plans))
    ]
    batches = [batch.with_tokens(advantages=batch.tokens["advantages"] * factor) for batch in batches]
    with bench.varied(variant), bench.crossing(small), bench.engine(model=folder, layout=layout, **fields) as engine:
        out = placed(bench)
        out["reports"] = []
        for number, (plan, batch) in enumerate(zip(plans, batches, strict=True)):
            _wait(bench, late, number)
            out["reports"].append(told(engine.train_step(shard(bench, batch, plan), OBJECTIVES[objective]())))
            if meet:
                bench.share()
        for number in range(sends):
            _wait(bench, late, len(plans) + number)
            sent = bench.sent(engine)
    if bench.rank != 0:
        return out

    def alone() -> tuple[list[dict[str, Any]], dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        with bench.engine(model=folder, **fields) as single:
            begin = bench.sent(single)
            steps = [
                told(single.train_step(batch.select(union_of(plan)), OBJECTIVES[objective]()))
                for plan, batch in zip(plans, batches, strict=True)
            ]
            return steps, begin, bench.sent(single), placed(bench)

    key = f"{plans} {model} {optimizer} {spec} {objective} {trained} {shapes} {factor}"
    out["alone"], begin, reference, out["alone_placed"] = once(bench, key, alone)
    out["gap"], out["worst"] = gap(reference, sent)
    out["moved"] = min(float((reference[name] - begin[name]).abs().max()) for name in reference)
    return out


def scores(
    bench: RankBench,
    layout: dict[str, int],
    plans: list[Rows],
    *,
    outputs: list[str],
    spec: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    variant: str = "",
) -> dict[str, Any]:
    """Score shards before and after a step, plan by plan; rank 0 tells what one rank, no variant, gives for all."""
    folder = bench.model(**(model or {}))
    batch = bench.batch(SHAPES)
    wanted = frozenset(Output(name) for name in outputs)
    objective = OBJECTIVES["values" if Output.VALUES in wanted else "gain"]
    out: dict[str, Any] = {"scored": []}
    with bench.varied(variant), bench.engine(model=folder, layout=layout, **(spec or {})) as engine:
        for rows in plans:
            mine = shard(bench, batch, rows)
            one: dict[str, Any] = {"rows": mine_of(bench, rows), "kept": ""}
            for moment in ("before", "after"):
                scored = engine.forward(mine, wanted)
                bench.share()
                one[moment] = {name: _by_sequence(scored, name) for name in outputs}
                one["kept"] = same_columns(mine, scored, outputs) or one["kept"]
                engine.train_step(mine, objective())
            out["scored"].append(one)
    if bench.rank != 0:
        return out

    def alone() -> list[dict[str, Any]]:
        found = []
        with bench.engine(model=folder, **(spec or {})) as single:
            for rows in plans:
                one: dict[str, Any] = {"order": union_of(rows)}
                whole = batch.select(one["order"])
                for moment in ("before", "after"):
                    scored = single.forward(whole, wanted)
                    one[moment] = {name: _by_sequence(scored, name) for name in outputs}
                    single.train_step(whole, objective())
                found.append(one)
        return found

    out["alone"] = once(bench, f"scores {plans} {outputs} {spec} {model}", alone)
    return out


def spoiled(
    bench: RankBench, layout: dict[str, int], rows: Rows, *, defect: str, bad: int, call: str = "train_step"
) -> dict[str, Any]:
    """Make a call that is wrong on one rank only, or on every one that computes a bad objective; then a right one."""
    batch = bench.batch(SHAPES)
    batch = batch.with_tokens(**{LONG_NAME: torch.zeros(batch.num_tokens)}) if defect == "long_name" else batch
    with bench.engine(layout=layout, max_tokens_per_microbatch=20) as engine:
        good = shard(bench, batch, rows)
        wrong = _wrong(bench, good, defect) if bench.rank == bad else good
        before = bench.sent(engine)
        asks = {"long_name": "asking", "objective": "failing"}.get(defect, "gain")
        out: dict[str, Any] = {"error": error_of(lambda: _call(engine, call, wrong, asks))}
        bench.share()  # who never comes here hangs in the call
        out["unchanged"] = gap(before, bench.sent(engine))[0] == 0.0
        out["next"] = told(engine.train_step(good, OBJECTIVES["gain"]()))
    if bench.rank == 0:
        out["alone"] = _alone_step(bench, batch.select(union_of(rows)), max_tokens_per_microbatch=20)
    return out


def not_finite(
    bench: RankBench, layout: dict[str, int], rows: Rows, *, bad: int, value: float | str, head: str = "causal_lm"
) -> dict[str, Any]:
    """Step with a number that is not finite in one shard, once before and once after a right step."""
    column_of, objective = ("returns", "values") if head == "value" else ("advantages", "gain")
    batch = bench.batch(SHAPES)
    optimizer = attrs.evolve(OPTIMIZER, warmup_steps=4, max_grad_norm=1.0)
    with bench.engine(layout=layout, optimizer=optimizer, head=head) as engine:
        good = shard(bench, batch, rows)
        wrong = good
        assert bench.info is not None, "the engine is started"
        if bench.info.data_rank == bad % bench.info.data_size:  # ranks that share a shard are given the same one
            column = good.tokens[column_of].clone()
            column[good.tokens["loss_mask"].nonzero()[-1]] = float(value)
            wrong = good.with_tokens(**{column_of: column})
        before = bench.sent(engine)
        out: dict[str, Any] = {"skipped": told(engine.train_step(wrong, OBJECTIVES[objective]()))}
        after = bench.sent(engine)
        out["changed"] = gap(before, after)[0]
        out["good"] = [told(engine.train_step(good, OBJECTIVES[objective]()))]
        out["skipped_again"] = told(engine.train_step(wrong, OBJECTIVES[objective]()))
        out["good"].append(told(engine.train_step(good, OBJECTIVES[objective]())))
        sent = bench.sent(engine)
    if bench.rank != 0:
        return out

    def alone() -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        with bench.engine(optimizer=optimizer, head=head) as single:
            whole = batch.select(union_of(rows))
            return [told(single.train_step(whole, OBJECTIVES[objective]())) for _ in range(2)], bench.sent(single)

    out["alone"], reference = once(bench, f"finite {rows} {head}", alone)
    out["gap"], out["worst"] = gap(reference, sent)
    return out


def frozen_role(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Score with a role that has no optimizer, ask it to train, score again."""
    batch = bench.batch(SHAPES)
    wanted = frozenset({Output.LOGPROBS})
    with bench.engine(layout=layout, optimizer=None, role="reference") as engine:
        mine = shard(bench, batch, rows)
        out: dict[str, Any] = {"rows": mine_of(bench, rows)}
        out["before"] = _by_sequence(engine.forward(mine, wanted), "logprobs")
        out["error"] = error_of(lambda: engine.train_step(mine, OBJECTIVES["gain"]()))
        bench.share()
        out["after"] = _by_sequence(engine.forward(mine, wanted), "logprobs")
    if bench.rank == 0:
        with bench.by_itself(), bench.engine(optimizer=None, role="reference") as engine:
            out["alone"] = _by_sequence(engine.forward(batch, wanted), "logprobs")
    return out


def adapters(bench: RankBench, layout: dict[str, int], rows: Rows) -> dict[str, Any]:
    """Train a low-rank adapter; before and after, all ranks score the same sequences."""
    lora = LoraSpec(rank=2, alpha=8.0, targets=("q_proj", "down_proj"))
    batch = bench.batch(SHAPES)
    same = batch.select([0, 3, 5])
    wanted = frozenset({Output.LOGPROBS})
    out: dict[str, Any] = {"scores": [], "reports": []}
    with bench.engine("lora", layout=layout, lora=lora) as engine:
        begin = bench.sent(engine)
        out["scores"].append(_by_sequence(engine.forward(same, wanted), "logprobs"))
        for _ in range(2):
            out["reports"].append(told(engine.train_step(shard(bench, batch, rows), OBJECTIVES["gain"]())))
            out["scores"].append(_by_sequence(engine.forward(same, wanted), "logprobs"))
        end = bench.sent(engine)
    if bench.rank == 0:
        moved = {name: float((end[name] - begin[name]).abs().max()) for name in begin}
        out["moved"] = sorted(name for name, distance in moved.items() if distance)
        out["targets"] = sorted(name for name in begin if name.endswith(("q_proj.weight", "down_proj.weight")))
        with bench.by_itself(), bench.engine("lora", lora=lora) as engine:
            out["alone"] = told(engine.train_step(batch.select(union_of(rows)), OBJECTIVES["gain"]()))
    return out


def _trained_on(batch: Batch, rows: list[int] | None) -> Batch:
    if rows is None:
        return batch
    chosen = torch.isin(batch.sequence_ids, torch.tensor(rows))
    return batch.with_tokens(loss_mask=batch.tokens["loss_mask"] & chosen)


def _wait(bench: RankBench, late: int | None, number: int) -> None:
    if late is None:
        return
    bench.share()
    if bench.rank == (late + number) % bench.world_size:
        time.sleep(0.3)  # the fault itself: this rank is called later than the others


def _wrong(bench: RankBench, good: Batch, defect: str) -> Batch:
    if defect in ("missing_column", "long_name"):
        lacking = "advantages" if defect == "missing_column" else LONG_NAME
        columns = {str(name): column for name, column in good.tokens.items() if name != lacking}
        return Batch.of(columns, {str(name): column for name, column in good.sequences.items()}, good.lengths)
    if defect == "unknown_token":
        ids = good.tokens["input_ids"].clone()
        ids[-1] = 10**6
        return good.with_tokens(input_ids=ids)
    long = bench.batch([*SHAPES[:2], (2, 30)])
    return long if defect == "too_long" else good


def _call(engine: TrainEngine, call: str, batch: Batch, objective: str) -> None:
    if call == "forward":
        engine.forward(batch, frozenset({Output.LOGPROBS}))
    else:
        engine.train_step(batch, OBJECTIVES[objective]())


def _alone_step(bench: RankBench, batch: Batch, **fields: Any) -> dict[str, Any]:
    def alone() -> dict[str, Any]:
        with bench.engine(**fields) as engine:
            return told(engine.train_step(batch, OBJECTIVES["gain"]()))

    result: dict[str, Any] = once(bench, f"alone step {fields} {batch.num_tokens}", alone)
    return result


def _by_sequence(batch: Batch, name: str) -> list[list[float]]:
    column = batch.tokens[name]
    bounds = batch.cu_seqlens.tolist()
    return [column[start:end].tolist() for start, end in pairwise(bounds)]
