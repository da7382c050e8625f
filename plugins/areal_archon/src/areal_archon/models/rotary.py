"""Rotary positions: which angles a token's place turns queries and keys by (arXiv:2104.09864).

Knows: frequencies of a configuration, those of the scaled kinds as transformers computes them.
Does not know: heads or layers. The frequencies are no parameter and no buffer, so a model built on the meta
device does not lose them.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import ModelError

_FIXED = ("linear", "llama3", "yarn")
"""Scalings that do not depend on how long a sequence is."""


@frozen(eq=False)
class Rotary:
    """Angles per position: `frequencies` float32 [D / 2]; cosine and sine are multiplied by `scale`."""

    frequencies: Tensor
    scale: float

    @classmethod
    def of(cls, path: str, config: Any, head_dim: int) -> Rotary:  # Any: transformers is not typed here
        """Read a configuration.

        Raises:
            ModelError: a scaling that depends on the length of the sequence.
        """
        parameters = config.rope_parameters
        kind = parameters.get("rope_type", "default")
        if parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(
                f"model {path!r} turns a part of each head only",
                why="archon's families turn all of it",
                fix="use the fsdp backend, which takes any model of transformers",
            )
        if kind == "default":
            steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            return cls(1.0 / (parameters["rope_theta"] ** steps), 1.0)
        if kind not in _FIXED:
            raise ModelError(
                f"model {path!r} has rotary positions of type {kind!r}",
                why=f"packed sequences share one table of angles, so archon takes default, {', '.join(_FIXED)}",
                fix="choose another model, or remove the scaling from its config.json",
            )
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return cls(frequencies.float(), float(scale))

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each [T, D], of int64 positions [T]."""
        turns = positions[:, None].float() * self.frequencies.to(positions.device)
        both = torch.cat([turns, turns], -1)
        return (both.cos() * self.scale).to(dtype), (both.sin() * self.scale).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys [H, T, D], whose halves are the two coordinates of each pair."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin
