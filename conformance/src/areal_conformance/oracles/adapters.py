"""Low-rank adapters in PEFT's folder format, and the merged weights they must amount to.

Knows: names, shapes, scale; random but fixed contents, large enough that the policy changes.
Does not know: engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

EVERY_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, weights: Mapping[str, Tensor], *, rank: int, alpha: float, targets: Sequence[str], seed: int
) -> dict[str, Tensor]:
    """Write an adapter of some linear layers; return the weights with it merged in."""
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = dict(weights), {}
    for name, weight in sorted(weights.items()):
        layer = name.removesuffix(".weight")
        if not layer.endswith(tuple(targets)) or weight.ndim != 2:
            continue
        down = torch.randn(rank, weight.shape[1], generator=generator) * weight.shape[1] ** -0.5
        up = torch.randn(weight.shape[0], rank, generator=generator) * 0.5 * rank**-0.5
        up = torch.where(weight.float().abs().sum(1, keepdim=True) == 0, torch.zeros(()), up)  # keep silent rows silent
        tensors[f"base_model.model.{layer}.lora_A.weight"] = down
        tensors[f"base_model.model.{layer}.lora_B.weight"] = up.contiguous()
        merged[name] = (weight.float() + alpha / rank * (up @ down)).to(weight.dtype)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "lora_dropout": 0.0,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
    return merged
