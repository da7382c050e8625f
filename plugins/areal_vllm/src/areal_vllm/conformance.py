"""What the vLLM backend tells the conformance suite about itself.

Knows: how its server is asked for the weights it computes with; what fits its kernels.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter
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
    patience=12.0,
    slow_start=True,
)
