"""What the FSDP engine does on one, two and four ranks: `ranks.py RANK WORLD FOLDER`; `test_ranks.py` judges."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from areal_fsdp.config import FSDPConfig
from areal_fsdp.engine import FSDPEngine
from areal_torch import hf
from areal_torch.optimizer import local
from areal_torch.testing.axes.plan import Case, Plan, Runner, on_drawn_routes, plain
from areal_torch.testing.axes.program import main

LAYERS = {"wrap": "layer"}
MICRO = {**LAYERS, "reduce_every_microbatch": False, "activation_checkpointing": True}
COMPILED = {**LAYERS, "compile": True, "compile_backend": "aot_eager"}
TWICE = {"replicas": 2}
PIECES = {"max_tokens_per_microbatch": 15}
FEW = {"max_tokens_per_microbatch": 20}


def in_pieces(names: str) -> dict[str, Case]:
    """Return cases of many micro-batches, layers wrapped, gradients reduced once, activations computed again."""
    return {
        f"{model}/pieces_{layout}": Case(model=model, layout=layout, options=MICRO, spec=PIECES)
        for model, layout in (name.split("/") for name in names.split())
    }


ON_ONE = {**plain("qwen3/d1 odd/d1"), **in_pieces("odd/d1"), **on_drawn_routes("d1", options=LAYERS, spec={})}
ON_TWO = {
    **plain("qwen3/d2 qwen3/t2 qwen3/c2 odd/d2 odd/t2 odd/c2 qwen2/t2 biased/t2 granite/t2 moe/d2 moe/c2 moe/t2"),
    **in_pieces("odd/d2 odd/t2 qwen3/t2 qwen3/c2 moe/t2"),
    **on_drawn_routes("d2", spec={}),
    **on_drawn_routes("c2 t2", options=LAYERS),
    "routed/pieces_d2": Case(model="moe", layout="d2", routed=True, options=MICRO, spec=PIECES),
    "layers_t": Case(model="qwen3", layout="t2", options=LAYERS, spec=FEW),
    "replicas": Case(model="qwen3", layout="d2", options={**LAYERS, **TWICE}, spec=FEW),
    "compiled": Case(model="qwen3", layout="d2", options=COMPILED, spec=FEW),
    "compiled_c": Case(model="qwen3", layout="c2", options={**COMPILED, "activation_checkpointing": True}, spec=FEW),
    "compiled_routed": Case(model="moe", layout="d2", routed=True, options=COMPILED, spec=FEW),
}
ON_FOUR = {
    **plain("qwen3/d2t2 qwen3/d2c2 qwen3/c2t2 qwen3/c4 odd/d2t2 odd/c2t2 odd/d4 moe/d2t2"),
    **in_pieces("qwen3/d2t2 qwen3/c2t2"),
    **on_drawn_routes("d2t2", options=LAYERS),
    "replicas_d": Case(model="qwen3", layout="d4", options={**LAYERS, **TWICE}, spec=FEW),
    "replicas_pieces": Case(model="qwen3", layout="d4", options={**MICRO, **TWICE}, spec=PIECES),
    "replicas_t": Case(model="qwen3", layout="d2t2", options=TWICE),
    "replicas_c": Case(model="qwen3", layout="d2c2", options=TWICE),
}


def cut(run: Runner) -> dict[str, Any]:
    """What t2 leaves on a rank: half of each matrix, whole norms, everything on one mesh."""
    if run.world != 2:
        return {}
    engine = run.engine("t2")
    parameters, model = engine.trainer.state.parameters, engine.trainer.model.root.hf
    assert all(isinstance(parameter, DTensor) for parameter in parameters.values())
    out = {
        "shapes": {name: list(local(parameter).shape) for name, parameter in parameters.items()},
        "meshes": sorted({str(parameter.device_mesh.mesh_dim_names) for parameter in parameters.values()}),
        "rotary": dict(model.named_buffers())["model.rotary_emb.inv_freq"].tolist(),
    }
    engine.close()
    return out


def split(engine: Any, name: str, whole: Tensor) -> Mapping[str, Tensor]:
    """Return a parameter as a folder has it; transformers fuses gate and up of all experts. Any: an engine."""
    found: Mapping[str, Tensor] = hf.folder_tensors(engine.trainer.model.root.hf, name, whole)
    return found


PLAN = Plan(
    name="fsdp",
    make=lambda options: FSDPEngine(FSDPConfig(**options)),
    cases={1: ON_ONE, 2: ON_TWO, 4: ON_FOUR},
    halves={"d1": LAYERS, "d2": LAYERS},
    beside={
        "frozen_role": {1: "d1", 4: "d2t2 c2t2 d4"},
        "value_head": {1: "d1", 2: "d2 t2 c2", 4: "d2t2"},
        "half_precision": {1: "d1", 2: "d2 t2 c2", 4: "d2t2"},
        "away": {1: "qwen3/d1", 2: "qwen3/d2 qwen3/t2", 4: "qwen3/d2t2"},
        "resume": {4: "qwen3/d2t2"},
        "left": {2: "t2 c2", 4: "d2t2 d2c2"},
    },
    reshards={
        2: [("2-odd-d2", "t2", {}), ("2-odd-d2", "d2", LAYERS), ("2-odd-t2", "c2", {})],
        4: [("2-odd-c2", "d2t2", {}), ("4-odd-d2t2", "c2t2", {}), ("4-odd-c2t2", "d4", {})],
        1: [("4-odd-d4", "d1", {}), ("2-odd-d2", "d1", {})],
    },
    refused={
        "plan": ("t2", {}, {"model": "gpt2"}),
        "context_heads": ("c2", {}, {"model": "odd_heads"}),
        "heads": ("t2", {}, {"model": "odd_heads"}),
        "replicas": ("d2", {"replicas": 3}, {}),
        "pipeline": ("d1p2", {}, {}),
        "compiled": ("t2", COMPILED, {}),
    },
    split=split,
    others=[cut],
)

if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch._dynamo")
    main(PLAN)
