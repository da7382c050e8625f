"""Programs on several ranks that look at drawn models, and at how precisely ranks keep what they share.

Knows: how far each rank's scores, and the step all made, are from transformers in float64.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_conformance.benches.train import Shape, read_folder
from areal_conformance.oracles.coasting import COAST, NOTHING, coasting, off_course
from areal_conformance.oracles.train_compare import SCORES
from areal_conformance.oracles.train_optimizer import DESCENT
from areal_conformance.ranks.answers import Rows, gap, shard, told, union_of
from areal_conformance.ranks.bench import RankBench
from areal_conformance.zoo.truth import Truth
from areal_core.contract.errors import CapabilityError, LayoutError, ModelError
from areal_core.contract.train import TrainEngine
from areal_torch.testing.batches import with_padding
from areal_torch.testing.objectives import PolicyGradient

SHAPES: list[Shape] = [(2, 3), (1, 40), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 27)]
"""Eight sequences, of which two are longer than the positions a scaled model was trained with."""
TEMPERATURE = 0.8
"""Not 1: each rank with a part of the vocabulary has to divide, too."""


def drawn(bench: RankBench, layout: dict[str, int], rows: Rows, *, folder: str, seed: int) -> dict[str, Any]:
    """Score shards and make one step; every rank tells how far its scores are from the truth, rank 0 the step too."""
    truth = Truth(Path(folder), temperature=TEMPERATURE)
    batch = with_padding(bench.batch(SHAPES, seed=seed))
    with bench.engine(model=Path(folder), layout=layout, optimizer=DESCENT, temperature=TEMPERATURE) as engine:
        mine = shard(bench, batch, rows)
        got, wanted = engine.forward(mine, SCORES), truth.columns(mine)
        out: dict[str, Any] = {
            str(name): float((got.tokens[name].cpu() - wanted[name].detach()).abs().max()) for name in sorted(SCORES)
        }
        out["report"] = told(engine.train_step(mine, PolicyGradient()))
        sent = bench.sent(engine)
    if bench.rank == 0:
        slope, before = truth.gradient(batch.select(union_of(rows)), PolicyGradient()), read_folder(Path(folder))
        stepped = {
            name: (before[name].double() - DESCENT.lr * gradient / (gradient.abs() + DESCENT.eps)).float()
            for name, gradient in slope.by_name.items()
        }
        out["loss"], out["norm"] = slope.loss, slope.norm
        out["gap"], out["worst"] = gap(stepped, {name: sent[name] for name in stepped if name in sent})
    return out


def refused(bench: RankBench, layout: dict[str, int], *, folder: str) -> str:
    """Start and close; every rank tells with which error it refused, nothing if it did not."""
    engine: TrainEngine = bench.build()
    try:
        engine.start(bench.spec(model=Path(folder), layout=layout), bench.rank_context())
    except (ModelError, CapabilityError, LayoutError) as error:
        return type(error).__name__
    finally:
        engine.close()
    return ""


def coasts(bench: RankBench, layout: dict[str, int], rows: Rows, *, num_steps: int) -> float | None:
    """Make a step with a gradient and others without; rank 0 tells how far weights are off the formula's course."""
    batch = bench.batch(SHAPES)
    with bench.engine(model=bench.model(hidden=32), layout=layout, optimizer=COAST) as engine:
        mine = shard(bench, batch, rows)
        still = shard(bench, bench.batch(SHAPES, advantages=0.0), rows)
        before = bench.sent(engine)
        engine.train_step(mine, PolicyGradient())
        first = bench.sent(engine)
        for _ in range(num_steps):
            engine.train_step(still, NOTHING)
        now = bench.sent(engine)
    return off_course(before, first, now, coasting(num_steps)) if bench.rank == 0 else None
