"""What this plugin can do, for `areal backends` and the plan."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported
from areal_core.plugins.manifest import Manifest

MANIFEST = Manifest(
    role="train",
    name="archon",
    contract=(1, 4),
    factory="areal_archon.engine:ArchonEngine",
    config="areal_archon.config:ArchonConfig",
    conformance="areal_archon.conformance:ADAPTER",
    requires=("torch>=2.11", "transformers>=5", "tensordict>=0.10"),
    extra="engine",
    devices=("cpu", "cuda"),
    summary="Torch-native N-D: Llama, Qwen2, Qwen3 and Qwen3-MoE over data, tensor, context, expert and pipeline ranks",
    claims={
        "parallel.data": full(),
        "parallel.tensor": full(),
        "parallel.pipeline": full(),
        "parallel.context": full(),
        "parallel.expert": full(),
        "checkpoint.exact": full(),
        "checkpoint.background": full(),
        "checkpoint.reshard": full(),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling; bfloat16 does not"),
        "memory.cpu_offload": not_yet("parameters and optimizer stay on the device"),
        "memory.offload": full(),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": not_yet("adapters are not trained"),
        "weights.adapter": not_yet("adapters are not trained"),
        "images": not_yet("its own models have no vision tower"),
        "experts.replay": full(),
        "candidates": not_yet("only the tokens taken are judged; use fsdp"),
    },
)
