"""Weights under which each token is the one before the last: exact places tell, at any length and in any dtype.

One layer, whose heads look at the place before their own and at nothing else, by the angles of rotary positions alone.
A place that is off by a half is seen in the token itself, where log-probs of a random model would hardly move.

Knows: names and shapes of decoders built like Llama, with and without norms of queries and keys.
Does not know: engines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TOKENS = 32
"""Ids that have a code of their own, as many as half the hidden numbers; the first of each code is 1."""
SHAPE: Mapping[str, Any] = {"layers": 1, "hidden": 2 * TOKENS, "heads": 4, "kv_heads": 2, "head_dim": 16}
"""Arguments of `make_tiny_model`. Any: they are numbers."""
SHARP = 30.0
"""What a pair of numbers adds to a score at the right place, in nats: the nearest rival of eight pairs is 15 behind."""
SURE = 0.5
"""What a head knows of each number of the code it found: 18 nats for the right token, 0 for any other."""


def looking_back(model: Path, folder: Path) -> Path:
    """Copy the folder of a model of this `SHAPE`, with such weights; return the copy."""
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(file)
    save_file(_written(tensors, config), file, metadata={"format": "pt"})
    return folder


def _written(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:  # Any: json
    heads, kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    scale = (SHARP * dim**0.5 / 2) ** 0.5
    normed = any(name.endswith("q_norm.weight") for name in tensors)
    first, turn = torch.zeros(dim), torch.zeros(dim)
    angles = _theta(config) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    first[: dim // 2] = 1.0
    turn[: dim // 2], turn[dim // 2 :] = angles.cos().float(), angles.sin().float()
    made = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    for name, tensor in made.items():
        match name.removesuffix(".weight").rpartition(".")[2]:
            case "q_norm" | "k_norm":
                tensor.fill_(scale)
            case "q_proj" if tensor.ndim == 2:
                tensor[:, 0] = first.repeat(heads) * (1.0 if normed else scale)
            case "k_proj" if tensor.ndim == 2:
                tensor[:, 0] = turn.repeat(kv_heads) * (1.0 if normed else scale)
            case "v_proj" if tensor.ndim == 2:
                tensor[:, :TOKENS] = torch.eye(len(tensor), TOKENS)
            case "o_proj":
                for number in range(min(TOKENS, kv_heads * dim)):
                    head, place = divmod(number, dim)
                    tensor[TOKENS + number, head * heads // kv_heads * dim + place] = 1.0
            case "embed_tokens":
                tensor[:, :TOKENS] = _codes().repeat(-(-len(tensor) // TOKENS), 1)[: len(tensor)]
            case "lm_head":
                tensor[:TOKENS, TOKENS:] = SURE * _codes()
            case word if word.endswith("norm"):
                tensor.fill_(1.0)
    return made


def _theta(config: Mapping[str, Any]) -> float:
    found = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
    return float(found)


def _codes() -> Tensor:
    """Return codes [TOKENS, TOKENS] of 1 and -1, each at right angles to every other."""
    made = torch.ones(1, 1)
    while len(made) < TOKENS:
        made = torch.cat([torch.cat([made, made], 1), torch.cat([made, -made], 1)])
    return made
