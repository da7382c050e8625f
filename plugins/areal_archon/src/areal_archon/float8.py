"""Matrix products in 8-bit floats: which layers make them, and what they ask of device, layout and model.

Knows: torchao's float8 training, whose scales are found anew for every product.
Does not know: how layers are cut: each rank scales and multiplies what it has.

The seven matrices of a layer are multiplied so, forward and backward; embedding, head and norms are not. Master
weights, gradients and what ranks exchange stay what they were.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping

import torch
from torch import nn

from areal_archon.config import ArchonConfig
from areal_archon.schedules import Schedule
from areal_core.contract.errors import CapabilityError, LayoutError
from areal_core.plugins.install import pip_install
from areal_torch.shape import ModelShape

MULTIPLE = 16
"""What the sides of a matrix must be multiples of; tokens are filled up by torchao."""
_CAPABILITY = (8, 9)
_INSTALL = pip_install("areal-archon[fp8]")


def check_options(config: ArchonConfig, schedule: Schedule | None) -> None:
    """Refuse what cannot be combined with 8-bit products, before a device is opened.

    Raises:
        CapabilityError: torchao is not there, or an option it cannot be combined with is on.
    """
    if config.fp8 == "none":
        return
    if importlib.util.find_spec("torchao") is None:
        raise CapabilityError(
            f"no fp8: {config.fp8}", why="torchao, which computes the 8-bit products, is not installed", fix=_INSTALL
        )
    if schedule is not None and schedule.splits_backward:
        raise CapabilityError(
            f"fp8 cannot be combined with {schedule.name}",
            why="an 8-bit layer finds the gradients of input and weight at once, and this schedule would do it twice",
            fix="use 1F1B or Interleaved1F1B",
        )


def check_device(config: ArchonConfig, device: torch.device) -> None:
    """Refuse a device without 8-bit products, unless they are emulated.

    Raises:
        CapabilityError: it is a CPU, or a GPU older than compute capability 8.9.
    """
    if config.fp8 == "none" or config.fp8_emulate:
        return
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if found is None or found < _CAPABILITY:
        here = "" if found is None else f" of compute capability {found[0]}.{found[1]}"
        raise CapabilityError(
            f"no 8-bit matrix products on {device.type}{here}",
            why="a GPU has them from compute capability 8.9 on",
            fix="leave fp8 out and set dtype to bfloat16; or, to try the numbers and not the speed, set fp8_emulate",
        )


def check_fits(config: ArchonConfig, shape: ModelShape, layout: Mapping[str, int]) -> None:
    """Refuse a model with layers that cannot be multiplied so.

    Raises:
        CapabilityError: it has experts, or biases behind its last products.
        LayoutError: a side of a matrix, or of a tensor rank's part of it, is no multiple of 16.
    """
    if config.fp8 == "none":
        return
    if shape.mixtures:
        raise CapabilityError(
            f"fp8 does not support a {shape.family} with experts",
            why="rows of experts are multiplied in groups, which is not done in 8 bits here",
            fix="leave fp8 out",
        )
    if shape.out_bias or shape.feed_forward_bias:
        raise CapabilityError(
            f"fp8 does not support a {shape.family} with biases behind attention or feed-forward layers",
            why="they are added after the sum over tensor ranks, and an 8-bit layer adds its own before",
            fix="leave fp8 out",
        )
    tensor = layout.get("t", 1)
    sides = {
        "the hidden size": shape.hidden,
        "the columns of queries": shape.heads * shape.head_dim // tensor,
        "the columns of keys and values": shape.kv_heads * shape.head_dim // tensor,
        "the columns of a feed-forward layer": shape.intermediate // tensor,
    }
    odd = [f"{name}, {size}" for name, size in sides.items() if size % MULTIPLE]
    if odd:
        raise LayoutError(
            f"fp8 cannot multiply {'; '.join(odd)}",
            why=f"8-bit products take multiples of {MULTIPLE}" + (f", here of each of {tensor} parts" * (tensor > 1)),
            fix="leave fp8 out" + (", or use a smaller t" * (tensor > 1)),
        )


def multiply_in_8_bits(blocks: nn.ModuleDict, config: ArchonConfig) -> None:
    """Put 8-bit layers in the place of all linear layers of decoder blocks; their parameters stay the same objects."""
    if config.fp8 == "none":
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = Float8LinearConfig.from_recipe_name(config.fp8)
    options = dataclasses.replace(recipe, emulate=config.fp8_emulate, pad_inner_dim=True)
    convert_to_float8_training(blocks, config=options)
