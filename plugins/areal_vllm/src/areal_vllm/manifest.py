"""What the vLLM backend says of itself: one server per replica, in an environment of its own."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest

MANIFEST = Manifest(
    role="infer",
    name="vllm",
    contract=(1, 5),
    factory="areal_vllm.engine:VLLMEngine",
    config="areal_vllm.config:VLLMConfig",
    conformance="areal_vllm.conformance:ADAPTER",
    environment="areal_vllm:locks",
    requires=("aiohttp>=3.10", "torch>=2.11", "safetensors>=0.5", "xxhash>=3.5"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="vLLM servers, each with an interpreter of its own; tested on the CPU, unverified on cuda and npu",
    claims={
        "weights.staged": when("direct == false", "with direct the workers load in place as the weights arrive"),
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
        "sampling.structured": full(),
        "deterministic": not_yet("log-probs depend on what else is in the batch"),
        "parallel.tensor": full(),
        "parallel.pipeline": full(),
        "replica.hosts": when(
            "direct == false", "with direct the ranks fetch weights themselves, by an offer that only the leader has"
        ),
        "prefix_cache": full(),
        "scoring": full(),
        "memory.sleep": when(
            "sleep != false", "memory that is given back is set apart at start; set by placement=shared"
        ),
        "tools.parse": when("tool_parser != none", "vLLM has a parser per model family; rollout.options names it"),
        "lora.adapters": when("max_adapters != 0", "places for adapters are set aside at start"),
        "experts.trace": unsupported("vLLM 0.32 records them with its V2 model runner only, which needs Triton"),
        "images": full(),
        "transport.disk": full(),
        "transport.shm": full(),
        "transport.collective": full(),
    },
)
