"""What the SGLang backend tells the conformance suite about itself.

Knows: how its server is asked for the weights it computes with; what fits its kernels.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter
from areal_conformance.served import ServerWeights, server_faults

if TYPE_CHECKING:
    from areal_sglang.engine import SGLangEngine


def witness(engine: SGLangEngine) -> ServerWeights:
    """Return the weights that lie where the schedulers' loader wrote them."""
    return ServerWeights(engine, "/weights_checker", lambda path: {"action": f"areal.write:{path}"})


ADAPTER = Adapter(
    witness=witness,
    faults=server_faults,
    models=("qwen3", "qwen2", "llama", "qwen3_moe", "qwen2_5_vl"),
    dtypes=("float32", "bfloat16"),
    layouts=("t2",),
    options={
        "": {"kv_cache_gib": 0.25, "tool_parser": "qwen25", "start_timeout_s": 900.0},
        "weights.kv_recomputed": {"kv_on_update": "recompute"},
        "memory.sleep": {"sleep": True},
        "experts.trace": {"trace_experts": True},
        "lora.adapters": {"max_adapters": 4, "max_adapter_rank": 16},
    },
    patience=20.0,
    slow_start=True,
)
