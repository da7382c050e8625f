"""What the SGLang backend tells the conformance suite about itself.

Knows: how its server is asked for the weights it computes with; what fits its kernels.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant
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
    thresholds=(Threshold(counts="prompt", at=48, options={"server_args": ["--chunked-prefill-size", "48"]}),),
    variants={
        "short_pieces": Variant(
            options={"server_args": ["--chunked-prefill-size", "24"]},
            unseen="how much SGLang takes in at once changes seconds alone; words it does not know end its start",
        ),
    },
    bounds={
        "kv_cache_gib": Bounds(takes=(0.0,), refuses=(-1.0,)),
        "kv_on_update": Bounds(takes=("keep", "recompute"), refuses=("", "Keep")),
        "max_adapters": Bounds(takes=(0,), refuses=(-1,)),
        "max_adapter_rank": Bounds(takes=(1,), refuses=(0,)),
        "max_restarts": Bounds(takes=(0,), refuses=(-1,)),
        "start_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "hang_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "server_args": Bounds(takes=([],), refuses=(["--port", "1"], ["--port=1"], ["--dtype"])),
        "cpu_threads": Bounds(takes=(1,), refuses=(0, -1)),
    },
    without_effect={
        "python": "an interpreter is named where the environment is another one",
        "url": "a server that runs already: tests of areal-sglang start one",
        "key_env": "as `url`",
        "max_restarts": "what a server may suffer is checked with the faults",
        "start_timeout_s": "how long is waited",
        "hang_timeout_s": "how long is waited; a server that stands still is checked with the faults",
        "direct": "another road of weights, with a transport: tests of areal-sglang and of whole runs take it",
        "cpu_threads": "how fast it is",
    },
    no_threshold={
        "areal_sglang.dialect:_FLUSHES": "how often the cache is asked to be emptied while requests end",
        "areal_sglang.command:SPARE_TOKENS": "room beyond the context that no request is given",
    },
    patience=20.0,
    slow_start=True,
)
