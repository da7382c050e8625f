"""What the reference backends say of themselves: plain PyTorch, one process each, any device."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest

_ONE_RANK = "the reference trainer is one process; use fsdp for several"
_ONE_DEVICE = "the reference generator runs on one device; use vllm or sglang for tensor parallelism"

TRAIN = Manifest(
    role="train",
    name="reference",
    contract=(1, 3),
    factory="areal_reference.train.engine:ReferenceTrainEngine",
    config="areal_reference.train.config:ReferenceTrainConfig",
    conformance="areal_reference.train.conformance:ADAPTER",
    requires=("torch>=2.11", "transformers>=5", "tensordict>=0.10"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="plain PyTorch on one device: the example to read",
    claims={
        "parallel.data": unsupported(_ONE_RANK),
        "parallel.tensor": unsupported(_ONE_RANK),
        "parallel.pipeline": unsupported(_ONE_RANK),
        "parallel.context": unsupported(_ONE_RANK),
        "parallel.expert": unsupported(_ONE_RANK),
        "checkpoint.exact": full(),
        "checkpoint.background": full(),
        "checkpoint.reshard": unsupported(_ONE_RANK),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling; use bfloat16"),
        "memory.offload": full(),
        "memory.cpu_offload": unsupported("use fsdp, whose parameters can live on the CPU"),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": full(),
        "weights.adapter": full(),
        "images": full(),
        "experts.replay": full(),
    },
)

INFER = Manifest(
    role="infer",
    name="reference",
    contract=(1, 3),
    factory="areal_reference.infer.engine:ReferenceInferenceEngine",
    config="areal_reference.infer.config:ReferenceInferenceConfig",
    requires=("torch>=2.11", "transformers>=5", "xxhash>=3.5"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    conformance="areal_reference.infer.conformance:ADAPTER",
    summary="a small continuous-batching generator for any full-attention transformers decoder",
    claims={
        "weights.staged": full(),
        "weights.in_flight": full(),
        "weights.cast": full(),
        "weights.adapter": full(),
        "weights.kv_kept": when("kv_on_update == keep", "with kv_on_update: recompute the cache is recomputed"),
        "pause.keep": full(),
        "pause.abort": full(),
        "sampling.top_p": full(),
        "sampling.top_k": full(),
        "sampling.min_tokens": full(),
        "sampling.stop_strings": full(),
        "sampling.stop_tokens": full(),
        "sampling.seed": full(),
        "sampling.seed_continues": full(),
        "sampling.ignore_eos": full(),
        "sampling.min_p": full(),
        "sampling.penalties": full(),
        "sampling.repetition_penalty": full(),
        "sampling.structured": not_yet("it has no grammar engine"),
        "deterministic": when("deterministic == true", "costs about four times the time per step"),
        "parallel.tensor": unsupported(_ONE_DEVICE),
        "prefix_cache": not_yet("prompts are shared among running requests, not kept after them"),
        "scoring": not_yet("log-probs of given tokens come from the trainer"),
        "memory.sleep": not_yet("weights and cache stay on the device between steps"),
        "tools.parse": not_yet("outputs are not read for tool calls"),
        "lora.adapters": not_yet("only full weights are served"),
        "experts.trace": not_yet("the experts that computed a token are not recorded"),
        "images": unsupported("text decoders only"),
        "transport.disk": full(),
        "transport.shm": full(),
        "transport.collective": full(),
    },
)
