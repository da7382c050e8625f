"""Megatron-Core's own reading and writing of its checkpoints: `checkpoint_ranks.py RANK WORLD FOLDER`.

Saves `FOLDER/<model>-<layout>-saved` with Megatron, loads `FOLDER/<model>-written` with it into weights that were
zeroed, and writes FOLDER/loaded-<model>-<layout>-RANK.json: whether these are the ones of the model folder then.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from areal_core.config.backend import parse_backend
from areal_core.contract.train import RankContext, TrainSpec
from areal_megatron.engine import MegatronEngine
from areal_megatron.library import quiet

CASES = ("qwen3/t2", "qwen2/p2", "moe/d2e2")


def checkpointed(folder: Path, rank: int, world: int, case: str) -> dict[str, Any]:
    """Save one model and load it again from another checkpoint. Any: json."""
    with quiet():
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.validation import StrictHandling
    model, layout = case.split("/")
    engine = MegatronEngine()
    engine.start(
        TrainSpec(
            role="actor",
            model_path=str(folder / model),
            optimizer=None,
            layout=dict(parse_backend(f"megatron:{layout}").layout),
        ),
        RankContext(
            rank=rank,
            world_size=world,
            local_rank=rank,
            device="cpu",
            init_method=f"file://{folder}/store-{model}",
            timeout_s=100,
        ),
    )
    held = engine.built.held  # type: ignore[union-attr]
    (stage,) = engine.built.model.stages  # type: ignore[union-attr]
    for layer in stage.model.decoder.layers:
        # A norm before experts keeps its name with Transformer Engine's layers, which a GPU has.
        layer.submodules_config.sharded_state_dict_keys_map = {
            "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
            **({} if model == "moe" else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}),
        }
    before = {name: each.master.clone() for name, each in held.items()}
    with engine.around_pass():
        saved = folder / f"{model}-{layout}-saved"
        if rank == 0:
            saved.mkdir()
        dist.barrier()
        dist_checkpointing.save(_state(stage.model), str(saved))
        for each in held.values():
            each.master.zero_()
        written = str(folder / f"{model}-written")
        loaded = dist_checkpointing.load(_state(stage.model), written, strict=StrictHandling.RETURN_ALL)
        state, missing, unexpected = loaded
        stage.model.load_state_dict(state["model"], strict=False)
    others = [key for key in (*missing, *unexpected) if "_extra_state" not in key]
    assert not others, f"{case}: {others}"
    result = {name: bool(torch.equal(each.master, before[name])) for name, each in held.items()}
    engine.close()
    return result


def _state(model: Any) -> dict[str, Any]:
    return {"model": model.sharded_state_dict()}


def main() -> None:
    """Run every case."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    for case in CASES:
        equal = checkpointed(folder, rank, world, case)
        (folder / f"loaded-{case.replace('/', '-')}-{rank}.json").write_text(json.dumps(equal))
    for child in multiprocessing.active_children():  # Megatron leaves a manager, which would keep the log open
        child.kill()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":  # Megatron's writers are started by importing this file anew
    main()
