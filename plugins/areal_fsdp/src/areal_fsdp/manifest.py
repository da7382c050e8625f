"""What this plugin can do, for `areal backends` and the plan."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest

MANIFEST = Manifest(
    role="train",
    name="fsdp",
    contract=(1, 4),
    factory="areal_fsdp.engine:FSDPEngine",
    config="areal_fsdp.config:FSDPConfig",
    conformance="areal_fsdp.conformance:ADAPTER",
    requires=("torch>=2.11", "transformers>=5", "tensordict>=0.10"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="PyTorch FSDP2: any transformers causal LM, over data, tensor and context ranks",
    claims={
        "parallel.data": full(),
        "parallel.tensor": full(),
        "parallel.pipeline": unsupported("a transformers model runs in one piece; archon and megatron split layers"),
        "parallel.context": full(),
        "parallel.expert": not_yet("tensor ranks shard experts (t); archon and megatron have expert ranks"),
        "checkpoint.exact": full(),
        "checkpoint.background": full(),
        "checkpoint.reshard": full(),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling; bfloat16 does not"),
        "memory.cpu_offload": when("device != cpu", "on a CPU there is nothing to offload to"),
        "memory.offload": full(),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": full(),
        "weights.adapter": full(),
        "images": full(),
        "experts.replay": full(),
        "candidates": full(),
    },
)
