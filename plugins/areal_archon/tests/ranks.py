"""What the Archon engine does on one, two and four ranks: `ranks.py RANK WORLD FOLDER`; `test_ranks.py` judges."""

from __future__ import annotations

from areal_archon.config import ArchonConfig
from areal_archon.engine import ArchonEngine
from areal_torch.testing.axes.plan import SMALL, Case, Plan, on_drawn_routes, plain
from areal_torch.testing.axes.program import main

FULL = {"wrap": "layer", "activation_checkpointing": "full"}
SELECTED = {"wrap": "layer", "activation_checkpointing": "selective"}
COMPILED = {"compile": True, "compile_backend": "aot_eager"}
ZERO_BUBBLE = {"wrap": "layer", "pipeline_schedule": "InterleavedZeroBubble"}
V = {"pipeline_schedule": "ZBVZeroBubble", "stages_per_rank": 2}
INTERLEAVED = {"pipeline_schedule": "Interleaved1F1B", "stages_per_rank": 2}

ON_ONE = {
    **plain("qwen3/d1 qwen2/d1 llama/d1 moe/d1"),
    **on_drawn_routes("d1"),
    "routed_recomputed": on_drawn_routes("d1", options=FULL, spec={})["routed/d1"],
    "recomputed": Case(model="qwen3", layout="d1", options=FULL),
    "selected": Case(model="moe", layout="d1", options=SELECTED),
    "compiled": Case(model="qwen3", layout="d1", options=COMPILED),
}
ON_TWO = {
    **plain("odd/t2 qwen3/d2 qwen3/t2 qwen3/c2 qwen3/p2 qwen2/t2 qwen2/p2 llama/t2 llama/c2"),
    **plain("moe/d2 moe/t2 moe/c2 moe/p2 moe/d2e2 moe/c2e2"),
    **on_drawn_routes("d2 t2 c2 p2 d2e2"),
    "whole_norms": Case(model="qwen3", layout="t2", options={"sequence_parallel": False}),
    "moe_whole_norms": Case(model="moe", layout="t2", options={"sequence_parallel": False}),
    "once_a_step": Case(
        model="qwen3", layout="d2", options={"wrap": "layer", "reduce_every_microbatch": False}, spec=SMALL
    ),
    "recomputed_t": Case(model="qwen3", layout="t2", options=SELECTED, spec=SMALL),
    "recomputed_c": Case(model="qwen3", layout="c2", options={"activation_checkpointing": "full"}, spec=SMALL),
    "recomputed_e": Case(model="moe", layout="d2e2", options=FULL, spec=SMALL),
    "compiled_d": Case(model="qwen3", layout="d2", options={"wrap": "layer", **COMPILED}),
    "interleaved": Case(model="qwen2", layout="p2", options=INTERLEAVED, spec=SMALL),
    "zero_bubble": Case(model="qwen3", layout="p2", options=ZERO_BUBBLE, spec=SMALL),
    "zero_bubble_v": Case(model="qwen2", layout="p2", options=V, spec=SMALL),
}
ON_FOUR = {
    **plain("odd/d2t2 odd/t2p2 qwen3/d4 qwen3/d2t2 qwen3/d2c2 qwen3/t2c2 qwen3/d2p2 qwen3/t2p2 qwen3/c2p2"),
    **plain("qwen2/d2t2 qwen2/c4 moe/d4e2 moe/d4e4 moe/d2t2e2 moe/d2c2e4 moe/d2p2e2 moe/t2c2e2"),
    **on_drawn_routes("d2p2e2 t2c2e2"),
    "zero_bubble_d": Case(model="qwen3", layout="d2p2", options=ZERO_BUBBLE, spec=SMALL),
    "zero_bubble_t": Case(model="qwen3", layout="t2p2", options=ZERO_BUBBLE, spec=SMALL),
    "pipelined_recomputed": Case(model="llama", layout="d2p2", options=FULL, spec=SMALL),
}

PLAN = Plan(
    name="archon",
    make=lambda options: ArchonEngine(ArchonConfig(**options)),
    cases={1: ON_ONE, 2: ON_TWO, 4: ON_FOUR},
    options={"wrap": "layer"},
    reshards={
        1: [("2-qwen3-t2", "d1", {}), ("4-qwen3-d2t2", "d1", {}), ("2-odd-t2", "d1", {})],
        2: [
            ("4-qwen3-t2p2", "p2", {}),
            ("4-moe-d2t2e2", "d2e2", {}),
            ("4-odd-d2t2", "t2", {}),
            ("2-odd-t2", "d2", {}),
        ],
        4: [("4-qwen3-d2c2", "d2p2", {})],
    },
    refused={
        "ranks": ("d2t2", {}, {}),
        "heads": ("t2", {}, {"model": "odd_heads"}),
        "context_heads": ("c2", {}, {"model": "odd_heads"}),
        "layers": ("p2", {}, {"model": "odd_heads"}),
        "experts": ("d2e2", {}, {}),
        "too_many_experts": ("d2e4", {}, {}),
        "odd_experts": ("d2e2", {}, {"model": "odd_experts"}),
        "stages": ("p2", {"stages_per_rank": 2}, {}),
        "resharding": ("p2", {**ZERO_BUBBLE, "reshard_after_forward": "always"}, {}),
        "selected_e": ("d2e2", {"activation_checkpointing": "selective"}, {"model": "moe"}),
        "compiled_t": ("t2", {"compile": True}, {}),
        "tied_v": ("p2", V, {"model": "tied"}),
        "fp8": ("d2", {"fp8": "tensorwise"}, {}),
        "fp8_experts": ("d2", {"fp8": "rowwise", "fp8_emulate": True}, {"model": "moe"}),
        "fp8_halves": ("p2", {"fp8": "rowwise", "fp8_emulate": True, **ZERO_BUBBLE}, {}),
        "family": ("d2", {}, {"model": "unknown"}),
        "missing_shard": ("d2", {}, {"model": "torn"}),
        "other_weights": ("d2", {}, {"model": "mixed"}),
    },
)

if __name__ == "__main__":
    main(PLAN)
