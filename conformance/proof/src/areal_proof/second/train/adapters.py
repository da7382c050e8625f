"""Low-rank adapters: which layers have one, how it starts, what it adds to the weight it sits on.

Knows: W + (alpha / rank) B A.
Does not know: how layers are computed, or how anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import Factory, frozen
from torch import Tensor

from areal_core.contract.errors import CapabilityError, PlanError, WrongType
from areal_core.contract.train import Head, LoraSpec


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


def new_adapters(spec: LoraSpec, head: Head, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Adapters:
    """Make the adapters of a model whose tensors have these shapes; the same on every rank.

    Raises:
        WrongType: a rank below 1.
        PlanError: no layer has such a name.
        CapabilityError: with a value head, which would stay as it is.
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
        if len(shape) != 2 or layer.endswith("embed_tokens") or not layer.endswith(spec.targets):
            continue
        bound = shape[1] ** -0.5
        tensors[f"{layer}.A"] = (torch.rand(spec.rank, shape[1], generator=generator) * 2 - 1) * bound
        tensors[f"{layer}.B"] = torch.zeros(shape[0], spec.rank)
    if not tensors:
        raise PlanError(
            f"lora.targets {list(spec.targets)} name no layer of this model",
            why="a target is the end of a linear layer's name",
            fix="use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        )
    return Adapters(tensors=tensors, scale=spec.alpha / spec.rank)
