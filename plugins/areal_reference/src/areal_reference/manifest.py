"""What the reference backends can do, for `areal backends` and the plan."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported
from areal_core.plugins.manifest import Manifest

_ONE_PROCESS = "the reference trainer is one process; the fsdp backend takes several ranks"

TRAIN = Manifest(
    role="train",
    name="reference",
    contract=(1, 0),
    factory="areal_reference.train.engine:ReferenceTrainEngine",
    config="areal_reference.train.config:ReferenceTrainConfig",
    requires=("torch>=2.11", "transformers>=5"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="plain PyTorch in one process: any transformers causal LM; the engine to read first",
    claims={
        "parallel.data": unsupported(_ONE_PROCESS),
        "parallel.tensor": unsupported(_ONE_PROCESS),
        "parallel.pipeline": unsupported(_ONE_PROCESS),
        "parallel.context": unsupported(_ONE_PROCESS),
        "parallel.expert": unsupported(_ONE_PROCESS),
        "checkpoint.exact": full(),
        "checkpoint.reshard": full(),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling; bfloat16 does not"),
        "memory.cpu_offload": unsupported("use the fsdp backend with cpu_offload"),
        "memory.offload": not_yet("weights and optimizer stay on the device between steps"),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": not_yet("adapters are not trained"),
    },
)
