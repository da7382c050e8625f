"""Adapters as PEFT writes them, one folder each.

Knows: adapter_config.json, adapter_model.safetensors, the names of linear layers.
Does not know: requests, or when an adapter is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from attrs import frozen
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CapabilityError, CoverageError, ModelError
from areal_core.contract.train import LoraSpec
from areal_proof.second.infer.forward import Delta
from areal_proof.second.infer.stage import Needs

PREFIX, FILE = "base_model.model.", "adapter_model.safetensors"
_OTHER = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern")
"""Entries of adapter_config.json that make another scale, or another kind of adapter, than alpha / r."""

_OVER_THE_WHOLE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Ways to begin that leave the weights as they are; any other takes what A and B begin as from them."""


@frozen(kw_only=True, eq=False)
class Adapter:
    """One version of a named adapter: what it adds, layer by layer."""

    version: int
    deltas: Mapping[str, Delta]


def read_adapter(folder: Path, version: int, needs: Needs) -> Adapter:
    """Read an adapter for a model of these tensors.

    Raises:
        ModelError: the folder holds no readable adapter, or one of a kind other than plain LoRA.
        CoverageError: a tensor belongs to no layer of the model, has another shape, or lacks its partner.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"no adapter can be read from {str(folder)!r}",
            why=str(error),
            fix="give a folder with adapter_config.json and adapter_model.safetensors",
        ) from error
    odd = [word for word in _OTHER if config.get(word)]
    odd += ["init_lora_weights"] if config.get("init_lora_weights") not in _OVER_THE_WHOLE else []
    if config.get("peft_type", "LORA") != "LORA" or config.get("bias", "none") != "none" or odd:
        raise ModelError(
            f"the adapter in {str(folder)!r} is not plain LoRA",
            why=", ".join(odd) or "its peft_type or bias",
            fix="train with bias none, and one rank and alpha for all layers",
        )
    rank, scale = int(config["r"]), float(config["lora_alpha"]) / int(config["r"])
    deltas = {}
    if not tensors:
        raise ModelError(f"the adapter in {str(folder)!r} is empty", fix="save it again")
    for name in sorted({key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors}):
        pair = [tensors.pop(f"{PREFIX}{name}.lora_{side}.weight", torch.empty(0)) for side in "AB"]
        layer = needs.shapes.get(f"{name}.weight", ())
        if tuple(pair[0].shape) != (rank, *layer[1:]) or tuple(pair[1].shape) != (*layer[:1], rank):
            raise CoverageError(
                f"the adapter in {str(folder)!r} does not fit layer {name!r}",
                why=f"at rank {rank}, A is {list(pair[0].shape)}, B {list(pair[1].shape)}, the layer {list(layer)}",
                fix="load an adapter of the model that is served",
            )
        down, up = (part.to(device=needs.device, dtype=needs.dtype) for part in pair)
        deltas[name] = Delta(down=down, up=up, scale=scale)
    if tensors:
        raise ModelError(
            f"the adapter in {str(folder)!r} holds {next(iter(tensors))}",
            why="it is neither A nor B of a layer",
            fix="train an adapter of linear layers alone, without biases",
        )
    return Adapter(version=version, deltas=deltas)


def adapter_needs(needs: Needs, lora: LoraSpec) -> Needs:
    """Return what an update brings of an adapter: every A and B of the layers it is on."""
    shapes = dict[str, tuple[int, ...]]()
    for name, shape in needs.shapes.items():
        layer = name.removesuffix(".weight")
        if len(shape) == 2 and layer.endswith(lora.targets):
            shapes[f"{PREFIX}{layer}.lora_A.weight"] = (lora.rank, shape[1])
            shapes[f"{PREFIX}{layer}.lora_B.weight"] = (shape[0], lora.rank)
    return attrs.evolve(needs, shapes=shapes, tied={})


def deltas_of(tensors: Mapping[str, Tensor], lora: LoraSpec) -> dict[str, Delta]:
    """Return what an adapter that arrived adds, layer by layer."""
    layers = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    return {
        layer.removeprefix(PREFIX): Delta(
            down=tensors[f"{layer}.lora_A.weight"],
            up=tensors[f"{layer}.lora_B.weight"],
            scale=lora.alpha / lora.rank,
        )
        for layer in layers
    }


def loaded_adapter(adapters: Mapping[str, Adapter], name: str) -> Adapter:
    """Return a loaded adapter.

    Raises:
        CapabilityError: none of that name is.
    """
    if name not in adapters:
        raise CapabilityError(
            f"adapter {name!r} is not loaded",
            why=f"loaded are {', '.join(sorted(adapters)) or 'none'}",
            fix="call load_adapter first",
        )
    return adapters[name]
