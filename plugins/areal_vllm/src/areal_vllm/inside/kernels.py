"""What vLLM's kernels cannot compute: heads of some sizes, caches with NaN in them, tiles nobody asked for.

Knows: the CPU attention kernel's head sizes and instructions, the memory of keys and values.
Does not know: who is told.
"""

from __future__ import annotations

from typing import Any

from areal_vllm.inside import ascend


def why_unfit(runner: Any) -> str:
    """Return why the model cannot be served on this device, "" if it can. Any: vLLM's runner."""
    if runner.device.type == "npu":
        return ascend.why_unfit()
    if runner.device.type != "cpu":
        return ""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = runner.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    return "" if size in sizes else f"its attention heads are {size} wide; vLLM's CPU kernel takes {sizes}"


def allow_tiles(runner: Any) -> None:
    """Ask Linux for the processor's matrix tiles (AMX), where it has them. Any: vLLM's runner.

    vLLM's bfloat16 attention uses them unasked. Unless a large product came first, which asks, the process is
    ended by SIGILL at its first short prompt.
    """
    if runner.device.type == "cpu":
        import torch

        torch.cpu._init_amx()


def clean_cache(runner: Any) -> None:
    """Make every key and value finite. Any: vLLM's runner.

    What a request leaves in its blocks is read, times zero, by the next that gets them; NaN times zero is NaN.
    """
    for cache in runner.kv_caches:
        if cache.is_floating_point():
            cache.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
