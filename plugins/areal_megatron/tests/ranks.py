"""What the Megatron engine does on one, two and four ranks: `ranks.py RANK WORLD FOLDER`; `test_ranks.py` judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_core.contract.train import LoraSpec
from areal_megatron.config import MegatronConfig
from areal_megatron.engine import MegatronEngine
from areal_torch.testing.axes.plan import SMALL, Case, Plan, Raising, Runner, error_of, on_drawn_routes, plain, report
from areal_torch.testing.axes.program import main

FULL = {"activation_checkpointing": "full"}
SHARED = {"distributed_optimizer": True}
INTERLEAVED = {"virtual": 2}
CUT_EXPERTS = {"expert_tensor": 2}


def on_cut_experts(layouts: str, **options: Any) -> dict[str, Case]:
    """Return cases of a mixture with every expert cut, in several micro-batches. Any: options beside."""
    return {
        f"moe/cut_{'_'.join([*options, layout])}": Case(
            model="moe", layout=layout, options={**CUT_EXPERTS, **options}, spec=SMALL
        )
        for layout in layouts.split()
    }


ON_ONE = {
    **plain("qwen3/d1 qwen2/d1 llama/d1 moe/d1"),
    **on_drawn_routes("d1"),
    "routed_recomputed": on_drawn_routes("d1", options=FULL, spec={})["routed/d1"],
    "recomputed": Case(model="qwen3", layout="d1", options=FULL),
    "selected": Case(model="moe", layout="d1", options={"activation_checkpointing": "selective"}),
    "many": Case(model="qwen3", layout="d1", spec=SMALL),
    "odd/shared_d1": Case(model="odd", layout="d1", options=SHARED),
}
ON_TWO = {
    **plain("odd/t2 qwen3/d2 qwen3/t2 qwen3/c2 qwen3/p2 qwen2/t2 qwen2/p2 llama/t2 llama/c2"),
    **plain("moe/d2 moe/t2 moe/c2 moe/p2 moe/d2e2 moe/t2e2 moe/c2e2"),
    **on_drawn_routes("d2 t2 c2 p2 t2e2"),
    **on_cut_experts("d2 t2"),
    "routed/cut_c2": on_drawn_routes("c2", options=CUT_EXPERTS)["routed/c2"],
    "odd/shared_d2": Case(model="odd", layout="d2", options=SHARED),
    "odd/shared_c2": Case(model="odd", layout="c2", options=SHARED),
    "moe/shared_d2e2": Case(model="moe", layout="d2e2", options=SHARED, spec=SMALL),
    "many_p": Case(model="qwen3", layout="p2", spec=SMALL),
    "many_c": Case(model="qwen3", layout="c2", spec=SMALL),
    "recomputed_p": Case(model="moe", layout="p2", options=FULL, spec=SMALL),
    "recomputed_t": Case(model="qwen3", layout="t2", options=FULL, spec=SMALL),
    "recomputed_e": Case(model="moe", layout="d2e2", options=FULL, spec=SMALL),
    "interleaved": Case(model="qwen2", layout="p2", options=INTERLEAVED),
    "interleaved_tied": Case(model="tied", layout="p2", options=INTERLEAVED, spec=SMALL),
    "many_interleaved": Case(model="qwen2", layout="p2", options=INTERLEAVED, spec=SMALL),
}
ON_FOUR = {
    **plain("odd/d2t2 odd/t2p2 qwen3/d2t2 qwen3/d2c2 qwen3/t2c2 qwen3/d2p2 qwen3/t2p2 qwen3/c2p2"),
    **plain("qwen2/d2t2 qwen2/c4 moe/d4e4 moe/d2t2e2 moe/d2t2e4 moe/d2p2e2 moe/t2c2e2"),
    **on_drawn_routes("d2p2e2 t2c2e2"),
    **on_cut_experts("d2t2 d2t2e2 d4e2 d2p2"),
    **on_cut_experts("d4", distributed_optimizer=True),
    **on_cut_experts("t2c2e2", activation_checkpointing="full"),
    "odd/shared_d2t2": Case(model="odd", layout="d2t2", options=SHARED),
    "odd/shared_d2p2": Case(model="odd", layout="d2p2", options=SHARED),
    "moe/shared_d4e2": Case(model="moe", layout="d4e2", options=SHARED, spec=SMALL),
    "interleaved_d": Case(model="qwen2", layout="d2p2", options=INTERLEAVED, spec=SMALL),
    "interleaved_t": Case(model="qwen2", layout="t2p2", options=INTERLEAVED, spec=SMALL),
}


def unscored(run: Runner) -> dict[str, Any]:
    """An objective that raises on the one stage that calls it, and a right step after it; on two ranks."""
    if run.world != 2:
        return {}
    engine = run.engine("p2", **SMALL)
    error = error_of(lambda: engine.train_step(run.shard(), Raising()))
    out = {"error": error, "after": report(engine, run.shard())}
    engine.close()
    return out


def cut(run: Runner) -> dict[str, Any]:
    """Save, step, go back, step again, with every expert cut."""
    if run.world == 1:
        return {}
    engine = run.engine({2: "d2", 4: "d2t2e2"}[run.world], CUT_EXPERTS, model="moe")
    report(engine, run.shard())
    engine.save_state(run.folder / f"cut-{run.world}")
    expected = report(engine, run.shard())
    engine.load_state(run.folder / f"cut-{run.world}")
    out = {"expected": expected, "actual": report(engine, run.shard())}
    engine.close()
    return out


def noted(engine: Any) -> Mapping[str, Any]:
    """Tell how many moments this rank keeps, and whether Megatron marked what t cuts. Any: the engine's privates."""
    held = engine.built.held.values()
    columns = [each for each in held if each.parameter.name.endswith("linear_fc1.weight")]
    return {
        "moments": sum(each.numel() for each in engine.trainer.optimizer.tensors),
        "marked": any(hasattr(each.weight, "tensor_model_parallel") for each in columns),
        "experts": sum(each.weight.numel() for each in held if each.parameter.expert is not None),
    }


PLAN = Plan(
    name="megatron",
    make=lambda options: MegatronEngine(MegatronConfig(**options)),
    cases={1: ON_ONE, 2: ON_TWO, 4: ON_FOUR},
    halves={"d2": SHARED, "d2t2": SHARED},
    reshards={
        1: [
            ("2-qwen3-t2", "d1", {}),
            ("4-qwen3-d2t2", "d1", {}),
            ("2-odd-t2", "d1", {}),
            ("2-moe-cut_t2", "d1", {}),
        ],
        2: [
            ("4-qwen3-t2p2", "p2", {}),
            ("4-moe-d2t2e2", "d2e2", SHARED),
            ("4-odd-d2t2", "t2", {}),
            ("4-moe-cut_d2t2e2", "d2e2", {}),
            ("4-moe-d4e4", "t2", CUT_EXPERTS),
            ("4-odd-shared_d2p2", "d2", {}),
        ],
        4: [("4-qwen3-d2c2", "d2p2", {})],
    },
    refused={
        "ranks": ("d2t2", {}, {}),
        "heads": ("t2", {}, {"model": "odd_heads"}),
        "context_heads": ("c2", {}, {"model": "odd_heads"}),
        "layers": ("p2", {}, {"model": "odd_heads"}),
        "virtual_layers": ("p2", INTERLEAVED, {}),
        "no_pipeline": ("d2", INTERLEAVED, {}),
        "experts": ("d2e2", {}, {}),
        "too_many_experts": ("d2e4", {}, {}),
        "odd_experts": ("d2e2", {}, {"model": "odd_experts"}),
        "cut_experts": ("d2", CUT_EXPERTS, {}),
        "too_many_cuts": ("d2e2", CUT_EXPERTS, {"model": "moe"}),
        "odd_columns": ("d2", CUT_EXPERTS, {"model": "odd_columns"}),
        "family": ("d2", {}, {"model": "unknown"}),
        "biases": ("d2", {}, {"model": "biased"}),
        "positions": ("d2", {}, {"model": "stretched"}),
        "missing_shard": ("d2", {}, {"model": "torn"}),
        "other_weights": ("d2", {}, {"model": "mixed"}),
        "adapter": ("d2", {}, {"lora": LoraSpec(rank=2, alpha=4.0, targets=("q_proj",))}),
    },
    note=noted,
    others=[unscored, cut],
)

if __name__ == "__main__":
    main(PLAN)
