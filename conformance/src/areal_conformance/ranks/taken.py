"""A program that starts ranks with what an engine may refuse, and makes a step where all of them took it.

Knows: how ranks agree on whether they started.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from areal_conformance.oracles.train_objectives import OBJECTIVES
from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, once, shard, told
from areal_conformance.ranks.bench import OPTIMIZER, RankBench
from areal_conformance.varied import having

_SMALL = 20
"""Tokens of a micro-batch: every rank has several."""


def step(
    bench: RankBench, layout: dict[str, int], *, rows: Rows, model: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Start with these options, and step if every rank could; rank 0 tells what one rank without them makes of it."""
    folder = bench.model(**model)
    fields: dict[str, Any] = {"optimizer": OPTIMIZER, "max_tokens_per_microbatch": _SMALL}
    with having(bench, options):
        engine = bench.build()
    context = bench.rank_context()

    def start() -> None:
        bench.info = engine.start(bench.spec(model=folder, layout=layout, **fields), context)

    out: dict[str, Any] = {"error": error_of(start)}
    batch = bench.batch(SHAPES)
    if any(kind for kind, *_ in bench.share(out["error"])):
        engine.close()
        return out
    out["report"] = told(engine.train_step(shard(bench, batch, rows), OBJECTIVES["gain"]()))
    sent = bench.sent(engine)
    engine.close()
    if bench.rank != 0:
        return out

    def alone() -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
        with bench.engine(model=folder, **fields) as single:
            begun = bench.sent(single)
            return told(single.train_step(batch, OBJECTIVES["gain"]())), begun, bench.sent(single)

    out["alone"], begun, reference = once(bench, f"taken {model}", alone)
    out["gap"], out["worst"] = gap(reference, sent)
    out["moved"] = min(float((reference[name] - begun[name]).abs().max()) for name in reference)
    return out
