"""Programs that look at the random numbers of ranks.

Knows: what a rank draws just after its start.
Does not know: who has to draw alike; the check judges.
"""

from __future__ import annotations

from typing import Any

import torch

from areal_conformance.ranks.bench import RankBench

COUNT = 8


def draws(bench: RankBench, layout: dict[str, int], seeds: list[int]) -> dict[str, Any]:
    """Start with one seed after another; tell which shard this rank has, and what it draws each time."""
    out: dict[str, Any] = {"drawn": []}
    for seed in seeds:
        with bench.engine(layout=layout, seed=seed):
            assert bench.info is not None
            out["shard"] = bench.info.data_rank
            out["drawn"].append(torch.rand(COUNT, device=bench.target.torch_type).tolist())
    return out
