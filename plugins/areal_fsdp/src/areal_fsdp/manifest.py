"""What this plugin can do, for `areal backends` and the plan."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest

_FSDP_ONLY = "this plugin shards over data ranks only; archon and megatron do the rest"

MANIFEST = Manifest(
    role="train",
    name="fsdp",
    contract=(1, 1),
    factory="areal_fsdp.engine:FSDPEngine",
    config="areal_fsdp.config:FSDPConfig",
    conformance="areal_fsdp.conformance:ADAPTER",
    requires=("torch>=2.11", "transformers>=5", "tensordict>=0.10"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="PyTorch FSDP2: any transformers causal LM, sharded over any number of ranks",
    claims={
        "parallel.data": full(),
        "parallel.tensor": unsupported(_FSDP_ONLY),
        "parallel.pipeline": unsupported(_FSDP_ONLY),
        "parallel.context": unsupported(_FSDP_ONLY),
        "parallel.expert": unsupported(_FSDP_ONLY),
        "checkpoint.exact": full(),
        "checkpoint.reshard": full(),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling; bfloat16 does not"),
        "memory.cpu_offload": when("device != cpu", "on a CPU there is nothing to offload to"),
        "memory.offload": not_yet("weights and optimizer stay on the device between steps"),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": not_yet("adapters are not trained"),
    },
)
