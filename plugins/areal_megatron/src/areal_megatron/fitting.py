"""Whether a model fits a layout, and which rank has which of its layers.

Knows: what each axis divides, what the layers of a CPU cannot do.
Does not know: how anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from areal_core.contract.errors import LayoutError, ModelError
from areal_core.contract.train import Head
from areal_megatron.config import MegatronConfig
from areal_megatron.layers import torch_computes
from areal_megatron.names import EMBEDDING
from areal_torch.context import check_context
from areal_torch.layout import check_divides, check_shares, divisors
from areal_torch.parameters import Parameter
from areal_torch.shape import ModelShape, read_shape


def check_options(layout: Mapping[str, int], config: MegatronConfig) -> None:
    """Refuse virtual stages of no pipeline.

    Raises:
        LayoutError: there is one pipeline rank.
    """
    if config.virtual > 1 and layout.get("p", 1) == 1:
        raise LayoutError(
            f"virtual: {config.virtual} needs a pipeline",
            why="stages of one rank interleave only if other ranks have stages between them",
            fix="leave virtual out, or take p2 or more",
        )


def shape_of(path: str, config: Any, head: Head) -> ModelShape:  # Any: transformers is not typed here
    """Return the shape of a model that is built here.

    Raises:
        ModelError: a family, an activation or biases that are not.
    """
    shape = read_shape(path, config, head, engine="megatron")
    if shape.out_bias or shape.feed_forward_bias:
        raise ModelError(
            f"model {path!r} has biases on all linear layers",
            why="the families mapped here have them on queries, keys and values at most",
            fix="use the archon or the fsdp backend",
        )
    return shape


def check_fits(path: str, shape: ModelShape, layout: Mapping[str, int], config: MegatronConfig, device: str) -> None:
    """Refuse a layout that does not divide the model.

    Raises:
        LayoutError: naming what does not divide, and what would.
        ModelError: a router that Megatron has not.
    """
    tensor, context, expert = (layout.get(letter, 1) for letter in "tce")
    check_divides("t", tensor, shape.kv_heads, "key and value heads")
    check_divides("t", tensor, shape.heads, "attention heads")
    check_shares("t", tensor, shape.vocabulary, "entries of the vocabulary")
    if len(shape.mixtures) < shape.layers:
        check_divides("t", tensor, shape.intermediate, "feed-forward columns")
    if shape.mixtures:
        check_divides("e", expert, shape.experts, "experts")
        _check_columns(shape.expert_intermediate, config.expert_tensor)
    elif max(expert, config.expert_tensor) > 1:
        asked, name = (f"e{expert}", "e") if expert > 1 else (f"expert_tensor: {config.expert_tensor}", "expert_tensor")
        raise LayoutError(
            f"{asked} is for models with experts",
            why=f"this one, a {shape.family}, has none",
            fix=f"leave {name} out; the ranks then share the dense layers as data ranks do",
        )
    if shape.mixtures and shape.experts_per_token == 1 and shape.normalized_gates:
        raise ModelError(
            f"model {path!r} has one expert per token and gates that are normalised",
            why="the weight of a single expert would be 1 whatever the router says, and Megatron refuses that",
            fix="use the archon or the fsdp backend",
        )
    if context > 1 and torch_computes(device):
        check_context(context, shape.heads // tensor, shape.kv_heads // tensor)
    check_divides("p", layout.get("p", 1), shape.layers, "layers")
    stages = layout.get("p", 1) * config.virtual
    if shape.layers % stages:
        raise LayoutError(
            f"{stages} stages do not divide {shape.layers} layers",
            why=f"each of {layout.get('p', 1)} pipeline ranks has virtual: {config.virtual} stages of equal length",
            fix="choose virtual so that it divides the layers of a rank",
        )


def _check_columns(columns: int, degree: int) -> None:
    if columns % degree:
        raise LayoutError(
            f"expert_tensor: {degree} does not divide the {columns} columns of an expert",
            why="every rank that shares one takes equally many",
            fix=f"choose expert_tensor from {divisors(columns)}",
        )


def layers_of(rank: int, turn: int, shape: ModelShape, num_ranks: int, config: MegatronConfig) -> range:
    """Return the layers of a pipeline rank's stage number `turn`."""
    count = shape.layers // (num_ranks * config.virtual)
    first = (turn * num_ranks + rank) * count
    return range(first, first + count)


def owners(
    parameters: Sequence[Parameter], shape: ModelShape, num_ranks: int, config: MegatronConfig
) -> dict[str, int]:
    """Return for each parameter the pipeline rank whose stage has it."""
    rank_of = {
        layer: rank
        for rank in range(num_ranks)
        for turn in range(config.virtual)
        for layer in layers_of(rank, turn, shape, num_ranks, config)
    }

    def owner(parameter: Parameter) -> int:
        if parameter.layer is not None:
            return rank_of[parameter.layer]
        return 0 if parameter.name == EMBEDDING else num_ranks - 1

    return {parameter.name: owner(parameter) for parameter in parameters}
