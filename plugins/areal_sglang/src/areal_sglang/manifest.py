"""What the SGLang backend says of itself: one server per replica, in an environment of its own."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, when
from areal_core.plugins.manifest import Manifest

MANIFEST = Manifest(
    role="infer",
    name="sglang",
    contract=(1, 5),
    factory="areal_sglang.engine:SGLangEngine",
    config="areal_sglang.config:SGLangConfig",
    conformance="areal_sglang.conformance:ADAPTER",
    environment="areal_sglang:locks",
    requires=("aiohttp>=3.10", "torch>=2.11", "safetensors>=0.5", "xxhash>=3.5"),
    extra="engine",
    devices=("cpu", "cuda"),
    summary="SGLang servers, each with an interpreter of its own",
    claims={
        "weights.staged": when("direct == false", "with direct the ranks load in place as the weights arrive"),
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
        "sampling.ignore_eos": full(),
        "sampling.seed_continues": full(),
        "sampling.min_p": full(),
        "sampling.penalties": full(),
        "sampling.repetition_penalty": full(),
        "sampling.structured": full(),
        "deterministic": not_yet("log-probs depend on what else is in the batch"),
        "parallel.tensor": full(),
        "parallel.pipeline": not_yet("its stages hear of an update one after the other"),
        "replica.hosts": when(
            "direct == false", "with direct the ranks fetch weights themselves, by an offer that only the leader has"
        ),
        "prefix_cache": full(),
        "scoring": full(),
        "memory.sleep": when("sleep != false", "placement=shared sets the option; on CUDA it is unverified"),
        "lora.adapters": full(),
        "experts.trace": when("trace_experts == true", "the record costs memory per token of the cache"),
        "tools.parse": full(),
        "images": full(),
        "transport.disk": full(),
        "transport.shm": full(),
        "transport.collective": full(),
    },
)
