"""What a model with images sees: patches of an image in, one feature per token out, and where those tokens stand.

Knows: the vision tower of qwen2_5_vl with full attention, positions in three directions.
Does not know: files of images, or the decoders of the second engines, which both see by it.

Legend: N patches, P numbers of a patch, V the tower's hidden size, M patches merged into a token, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

EPSILON = 1e-6
THETA = 10000.0


@frozen(kw_only=True)
class Vision:
    """The numbers of config.json's vision part, and the placeholder of an image."""

    image_token: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    channels: int
    patch: int
    frames: int
    merge: int
    out: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Vision:
        """Read them. Any: JSON."""
        part = config["vision_config"]
        return cls(
            image_token=config["image_token_id"],
            hidden=part["hidden_size"],
            intermediate=part["intermediate_size"],
            num_layers=part["depth"],
            num_heads=part["num_heads"],
            channels=part["in_channels"],
            patch=part["patch_size"],
            frames=part["temporal_patch_size"],
            merge=part["spatial_merge_size"],
            out=part["out_hidden_size"],
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the tower by its name in a model folder."""
        wide = self.hidden * self.merge**2
        linears = {"merger.mlp.0": (wide, wide), "merger.mlp.2": (self.out, wide)}
        norms = ["merger.ln_q"]
        for layer in range(self.num_layers):
            block = f"blocks.{layer}"
            norms += [f"{block}.norm1", f"{block}.norm2"]
            linears[f"{block}.attn.qkv"] = (3 * self.hidden, self.hidden)
            linears[f"{block}.attn.proj"] = (self.hidden, self.hidden)
            linears |= {f"{block}.mlp.{part}_proj": (self.intermediate, self.hidden) for part in ("gate", "up")}
            linears[f"{block}.mlp.down_proj"] = (self.hidden, self.intermediate)
        found: dict[str, tuple[int, ...]] = {f"visual.{name}.weight": shape for name, shape in linears.items()}
        found |= {f"visual.{name}.bias": shape[:1] for name, shape in linears.items()}
        found |= {f"visual.{name}.weight": (self.hidden,) for name in norms}
        found["visual.patch_embed.proj.weight"] = (self.hidden, self.channels, self.frames, self.patch, self.patch)
        return found


@frozen(kw_only=True, eq=False)
class Picture:
    """Patches [N, P] of an image, those of a token together, and how many tokens it is high and wide."""

    patches: Tensor
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        """Return how many tokens it takes."""
        return self.rows * self.columns


def seen(vision: Vision, weights: Mapping[str, Tensor], picture: Picture) -> Tensor:
    """Return the features [L, C] of one image."""
    embed = weights["visual.patch_embed.proj.weight"].flatten(1)
    x_NV = F.linear(picture.patches.to(embed), embed)
    angles = _angles(vision, picture).to(x_NV.device)
    for layer in range(vision.num_layers):
        block = f"visual.blocks.{layer}"
        x_NV = x_NV + _attend(vision, weights, block, _norm(x_NV, weights[f"{block}.norm1.weight"]), angles)
        y_NV = _norm(x_NV, weights[f"{block}.norm2.weight"])
        gate = F.silu(_linear(weights, f"{block}.mlp.gate_proj", y_NV))
        x_NV = x_NV + _linear(weights, f"{block}.mlp.down_proj", gate * _linear(weights, f"{block}.mlp.up_proj", y_NV))
    merged = _norm(x_NV, weights["visual.merger.ln_q.weight"]).view(picture.num_tokens, -1)
    return _linear(weights, "visual.merger.mlp.2", F.gelu(_linear(weights, "visual.merger.mlp.0", merged)))


def expanded(ids: Sequence[int], image_token: int, pictures: Sequence[Picture]) -> list[int]:
    """Return ids with as many placeholders as each image needs; those beyond the last image stay as they are."""
    left = iter(pictures)
    found: list[int] = []
    for token in ids:
        picture = next(left, None) if token == image_token else None
        found += [token] * (1 if picture is None else picture.num_tokens)
    return found


def positions(ids: Sequence[int], image_token: int, pictures: Sequence[Picture]) -> Tensor:
    """Return the positions [3, L] of expanded ids in time, height and width: text goes on after an image's longer side.

    For text alone all three are 0, 1, 2, ...
    """
    left, start = iter(pictures), 0
    parts: list[Tensor] = []
    for token in ids:
        picture = next(left, None) if token == image_token else None
        if picture is None:
            parts.append(torch.full((3, 1), start))
            start += 1
            continue
        rows, columns = (axis.flatten() for axis in _grid(picture.rows, picture.columns))
        parts.append(start + torch.stack([torch.zeros_like(rows), rows, columns]))
        start += max(picture.rows, picture.columns)
    return torch.cat(parts, 1)


def _grid(rows: int, columns: int) -> Iterable[Tensor]:
    return torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")


def _angles(vision: Vision, picture: Picture) -> Tensor:
    """Return the rotation [N, D] of every patch: half of a head by its row, half by its column."""
    size, merge = vision.hidden // vision.num_heads, vision.merge
    steps = THETA ** -(torch.arange(0, size // 2, 2, dtype=torch.float32) / (size // 2))
    both = []
    for axis in _grid(picture.rows * merge, picture.columns * merge):
        blocks = axis.view(picture.rows, merge, picture.columns, merge).transpose(1, 2)  # patches of a token together
        both.append(torch.outer(blocks.flatten().float(), steps))
    return torch.cat([*both, *both], 1)


def _attend(vision: Vision, weights: Mapping[str, Tensor], block: str, x_NV: Tensor, angles: Tensor) -> Tensor:
    parts = _linear(weights, f"{block}.attn.qkv", x_NV).view(len(x_NV), 3, vision.num_heads, -1)
    query, key, value = parts.permute(1, 2, 0, 3)
    query, key = (_turned(part, angles) for part in (query, key))
    chances = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1, dtype=torch.float32)
    return _linear(weights, f"{block}.attn.proj", (chances.to(value) @ value).transpose(0, 1).reshape(len(x_NV), -1))


def _turned(x_HND: Tensor, angles: Tensor) -> Tensor:
    first, second = x_HND.float().chunk(2, -1)
    return (torch.cat([first, second], -1) * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).to(x_HND)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def _linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
