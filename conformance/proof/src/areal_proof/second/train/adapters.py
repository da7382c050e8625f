"""Low-rank adapters: which layers have one, how it starts, what it adds to the weight it sits on.

Knows: W + (alpha / rank) B A.
Does not know: how layers are computed, or how anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from attrs import Factory, frozen
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CapabilityError, ModelError, PlanError, WrongType
from areal_core.contract.train import Head, LoraSpec

PREFIX = "base_model.model."
_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@frozen(kw_only=True, eq=False)
class Adapters:
    """Layer name + `.A` or `.B` -> matrix. Without an adapter: an empty table."""

    tensors: Mapping[str, Tensor] = Factory(dict)
    scale: float = 0.0

    def pair(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """Return A and B of a layer, None if it has none."""
        if f"{layer}.A" not in self.tensors:
            return None
        return self.tensors[f"{layer}.A"], self.tensors[f"{layer}.B"]

    def merged(self, name: str, weight: Tensor) -> Tensor:
        """Return one tensor of the model as the adapted model has it."""
        pair = self.pair(name.removesuffix(".weight"))
        if pair is None or not name.endswith(".weight"):
            return weight.detach()
        return weight.detach() + self.scale * (pair[1].detach() @ pair[0].detach())

    def alone(self) -> dict[str, Tensor]:
        """Return every A and B under the name PEFT has for it."""
        return {f"{PREFIX}{name[:-1]}lora_{name[-1]}.weight": tensor.detach() for name, tensor in self.tensors.items()}


def begun(adapters: Adapters, folder: Path) -> Adapters:
    """Return the adapters with the A and B of a folder in PEFT's format.

    Raises:
        ModelError: it holds none, or others than these layers have.
    """
    try:
        found = load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"no adapter can be read from {str(folder)!r}", why=str(error), fix="save it again") from error
    shapes = {name: tensor.shape for name, tensor in adapters.alone().items()}
    if shapes != {name: tensor.shape for name, tensor in found.items()}:
        raise ModelError(
            f"the adapter in {str(folder)!r} does not fit",
            why=f"the model's has {len(shapes)} tensors, the folder's {len(found)}, of other names or shapes",
            fix="begin with one that was trained on this model",
        )
    return attrs.evolve(adapters, tensors=dict(zip(adapters.tensors, (found[name] for name in shapes), strict=True)))


def new_adapters(spec: LoraSpec, head: Head, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Adapters:
    """Make the adapters of a model whose tensors have these shapes; the same on every rank.

    Raises:
        WrongType: a rank below 1.
        PlanError: no layer has such a name.
        ModelError: the folder they begin as does not fit.
        CapabilityError: with a value head, which would stay as it is, or on other weights than layers.
    """
    if spec.rank < 1:
        raise WrongType(f"lora.rank is {spec.rank}", why="an adapter has at least one row", fix="set it to 8")
    if head is Head.VALUE:
        raise CapabilityError(
            "this engine trains no adapter on a model with a value head",
            why="only adapters would be trained, and a new value head is zero",
            fix="train the critic without lora",
        )
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if len(shape) != 2 or not layer.endswith(spec.targets):
            continue
        if ".experts." in layer or not layer.endswith(_LAYERS):
            raise CapabilityError(
                f"lora.targets {list(spec.targets)} name {layer}, which gets no adapter here",
                why=f"adapters sit on {', '.join(_LAYERS)} of attention and dense feed-forward layers",
                fix="name such layers alone",
            )
        bound = shape[1] ** -0.5
        tensors[f"{layer}.A"] = (torch.rand(spec.rank, shape[1], generator=generator) * 2 - 1) * bound
        tensors[f"{layer}.B"] = torch.zeros(shape[0], spec.rank)
    if not tensors:
        raise PlanError(
            f"lora.targets {list(spec.targets)} name no layer of this model",
            why="a target is the end of a linear layer's name",
            fix=f"use {', '.join(_LAYERS)}",
        )
    made = Adapters(tensors=tensors, scale=spec.alpha / spec.rank)
    return begun(made, Path(spec.path)) if spec.path else made
