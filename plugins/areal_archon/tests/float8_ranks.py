"""Products in emulated 8-bit floats on two ranks: `float8_ranks.py RANK WORLD FOLDER`; `test_float8.py` judges.

Every layout is trained one step without and with them. Writes FOLDER/float8-RANK.json: what this rank scored, and by
parameter how its part of the gradient lies to that of full precision (dot product and squared norms, to be added up
over ranks).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from areal_archon.config import ArchonConfig
from areal_archon.engine import ArchonEngine
from areal_core.config.backend import parse_backend
from areal_core.contract.batch import Batch
from areal_core.contract.train import OptimizerSpec, Output, RankContext, TrainSpec
from areal_torch.testing.batches import make_batch
from areal_torch.testing.objectives import PolicyGradient

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]
EIGHT = {"fp8": "rowwise", "fp8_emulate": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # Any: options of the engine
    "d2": ("d2", {"wrap": "layer"}),
    "t2": ("t2", {}),
    "t2, whole norms": ("t2", {"sequence_parallel": False}),
    "t2, recomputed": ("t2", {"wrap": "layer", "activation_checkpointing": "full"}),
    "c2": ("c2", {}),
    "p2": ("p2", {"wrap": "layer"}),
    "p2, interleaved": ("p2", {"pipeline_schedule": "Interleaved1F1B", "stages_per_rank": 2}),
}


def trained(
    rank: int, world: int, folder: Path, name: str, options: dict[str, Any]
) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Score and make a step; return log-probs, first moments, and the data rank. Any: options of the engine."""
    layout, own = CASES[name]
    engine = ArchonEngine(ArchonConfig(**own, **options))
    spec = TrainSpec(
        role="actor",
        model_path=str(folder / "model"),
        layout=dict(parse_backend(f"archon:{layout}").layout),
        optimizer=OptimizerSpec(lr=1e-3, max_grad_norm=0.0),
        max_tokens_per_microbatch=20,
    )
    store = f"file://{folder}/store-{list(CASES).index(name)}-{len(options)}"
    place = RankContext(rank=rank, world_size=world, local_rank=rank, device="cpu", init_method=store, timeout_s=60)
    info = engine.start(spec, place)
    batch = whole()
    mine = batch.select(list(range(info.data_rank, len(SHAPES), info.data_size)))
    scores = engine.forward(mine, frozenset({Output.LOGPROBS})).tokens["logprobs"]
    engine.train_step(mine, PolicyGradient())
    assert engine.trainer is not None
    assert engine.trainer.optimizer is not None
    moments = {n: tensor.clone() for n, tensor in engine.trainer.optimizer.moments["exp_avg"].items()}
    engine.close()
    return scores.tolist(), moments, info.data_rank


def whole() -> Batch:
    """Return the batch of all ranks, with advantages."""
    batch = make_batch(SHAPES)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(7))
    return batch.with_tokens(advantages=noise)


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}  # Any: json
    for name in CASES:
        scores, moments, data_rank = trained(rank, world, folder, name, {})
        rounded, noisy, _ = trained(rank, world, folder, name, EIGHT)
        products = {
            key: [float(a @ b) for a, b in ((x, y), (x, x), (y, y))]
            for key, x, y in ((key, moments[key].flatten().double(), noisy[key].flatten().double()) for key in moments)
        }
        found[name] = {"data_rank": data_rank, "scores": [scores, rounded], "products": products}
    (folder / f"float8-{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
