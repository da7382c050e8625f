"""What vLLM's kernels cannot compute, and would end the server with at the first request.

Knows: the CPU attention kernel's head sizes.
Does not know: who is told.
"""

from __future__ import annotations

from typing import Any


def why_unfit(runner: Any) -> str:
    """Return why the model cannot be served on this device, "" if it can. Any: vLLM's runner."""
    if runner.device.type != "cpu":
        return ""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = runner.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    return "" if size in sizes else f"its attention heads are {size} wide; vLLM's CPU kernel takes {sizes}"
