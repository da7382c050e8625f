"""What the vLLM backend tells the conformance suite about itself.

Knows: how its server is asked for the weights it computes with; what fits its kernels.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant
from areal_conformance.served import ServerWeights, server_faults

if TYPE_CHECKING:
    from areal_vllm.engine import VLLMEngine


def witness(engine: VLLMEngine) -> ServerWeights:
    """Return the weights that the worker's own layers hold."""
    return ServerWeights(
        engine, "/collective_rpc", lambda path: {"method": "areal_write_weights", "kwargs": {"path": str(path)}}
    )


ADAPTER = Adapter(
    witness=witness,
    faults=server_faults,
    models=("qwen3", "llama", "qwen3_moe", "qwen2_5_vl"),
    tiny={"head_dim": 32},  # the smallest heads vLLM's CPU kernel takes
    dtypes=("float32", "bfloat16"),
    layouts=("t2", "p2"),
    options={
        "": {"kv_cache_gib": 0.25, "tool_parser": "hermes"},
        "weights.kv_recomputed": {"kv_on_update": "recompute"},
        "memory.sleep": {"sleep": True},
        "lora.adapters": {"max_adapters": 4, "max_adapter_rank": 16},
    },
    thresholds=(
        Threshold(counts="prompt", at=48, options={"server_args": ["--max-num-batched-tokens", "48"]}),
        Threshold(counts="length", at=32, options={"server_args": ["--block-size", "32"]}),
    ),
    variants={
        "short_pieces": Variant(
            options={"server_args": ["--max-num-batched-tokens", "48", "--block-size", "32"]},
            unseen="how much vLLM takes in at once changes seconds alone; words it does not know end its start",
        ),
    },
    bounds={
        "kv_cache_gib": Bounds(takes=(0.0,), refuses=(-1.0,)),
        "kv_on_update": Bounds(takes=("keep", "recompute"), refuses=("", "Keep")),
        "max_adapters": Bounds(takes=(0,), refuses=(-1,)),
        "max_adapter_rank": Bounds(takes=(1, 512), refuses=(0, 513)),
        "max_restarts": Bounds(takes=(0,), refuses=(-1,)),
        "start_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "hang_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "server_args": Bounds(takes=([],), refuses=(["--port", "1"], ["--port=1"], ["--dtype"])),
        "device_memory_share": Bounds(takes=(1.0,), refuses=(0.0, 1.1)),
    },
    without_effect={
        "python": "an interpreter is named where the environment is another one",
        "url": "a server that runs already: tests of areal-vllm start one",
        "key_env": "as `url`",
        "max_restarts": "what a server may suffer is checked with the faults",
        "start_timeout_s": "how long is waited",
        "hang_timeout_s": "how long is waited; a server that stands still is checked with the faults",
        "direct": "another road of weights, with a transport: tests of areal-vllm and of whole runs take it",
        "device_memory_share": "of an accelerator's memory",
    },
    no_threshold={
        "areal_vllm.command:_DEFAULT_BATCHED_TOKENS": "with more requests at once vLLM is told so many",
        "areal_vllm.config:ADAPTER_RANKS": "ranks vLLM has kernels for: the next larger one is taken",
    },
    patience=12.0,
    slow_start=True,
)
