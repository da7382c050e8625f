"""How many tokens a second the ranks of a role could train at most: what `train/peak_share` is a share of.

    ranks * peak / (6 * parameters)                      PaLM, arXiv:2204.02311, appendix B, without its attention term

Knows: which parameters a token is multiplied with, for the decoders of `shape`, and whom to ask for a device's peak.
Does not know: how fast anything is. Operations done twice (recomputed activations) are no work of the model.
"""

from __future__ import annotations

from typing import Any

import torch

from areal_core.contract.errors import ModelError
from areal_core.contract.train import RankContext, TrainSpec
from areal_devices.peaks import peak_flops
from areal_torch.shape import ModelShape, read_shape

PEAK_TOKENS_PER_S = "peak_tokens_per_s"
"""The key of `EngineInfo.details` that the core divides the tokens of a step by."""

_OPERATIONS = 6
"""Per parameter and token: a product and a sum in the forward pass, twice that in the backward pass."""


def peak_details(spec: TrainSpec, rank: RankContext, config: Any, device: torch.device) -> dict[str, str]:
    """Return the tokens a second of all ranks at peak, for `EngineInfo.details`; nothing where it is not known.

    Known are models of `areal_torch.shape` trained whole (an adapter has a cheaper backward pass) on devices whose
    peak `areal_devices.peaks` has. Any: `config` is a transformers configuration.
    """
    peak = peak_flops(_name(device), spec.dtype)
    if peak is None or spec.optimizer is None or spec.lora is not None:
        return {}
    try:
        shape = read_shape(spec.model_path, config, spec.head, engine="peak_details")
    except (ModelError, AttributeError):  # another family, with another configuration
        return {}
    return {PEAK_TOKENS_PER_S: repr(rank.world_size * peak / (_OPERATIONS * multiplied_parameters(shape)))}


def multiplied_parameters(shape: ModelShape) -> int:
    """Return how many parameters one token is multiplied with: of experts those it is sent to, of embeddings none."""
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    dense = 3 * shape.hidden * shape.intermediate
    chosen = 3 * shape.hidden * shape.expert_intermediate * shape.experts_per_token
    mixture = chosen + shape.hidden * shape.experts
    layers = shape.layers * attention + (shape.layers - len(shape.mixtures)) * dense + len(shape.mixtures) * mixture
    return layers + shape.hidden * shape.vocabulary


def _name(device: torch.device) -> str:
    """Return what torch calls a device; empty where it has no name."""
    module: Any = getattr(torch, device.type, None)  # Any: torch.cuda and the like
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else ""
