"""Rotary positions: the angles that Megatron's attention turns queries and keys by (arXiv:2104.09864).

Knows: frequencies of a configuration, those of the scaled kinds as transformers computes them.
Does not know: heads or layers.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import ModelError

_FIXED = ("linear", "llama3")
"""Scalings that do not depend on how long a sequence is, and change angles only."""


@frozen(eq=False)
class Rotary:
    """Angles per position: `frequencies` float32 [D / 2]."""

    frequencies: Tensor

    @classmethod
    def of(cls, path: str, config: Any, head_dim: int) -> Rotary:  # Any: transformers is not typed here
        """Read a configuration.

        Raises:
            ModelError: a scaling that depends on the length of the sequence, or scales more than angles.
        """
        parameters = config.rope_parameters
        kind = parameters.get("rope_type", "default")
        if parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(
                f"model {path!r} turns a part of each head only",
                why="megatron's families turn all of it",
                fix="use the fsdp backend, which takes any model of transformers",
            )
        if kind == "default":
            steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            return cls(1.0 / (parameters["rope_theta"] ** steps))
        if kind not in _FIXED:
            raise ModelError(
                f"model {path!r} has rotary positions of type {kind!r}",
                why=f"packed sequences share one table of angles, so megatron takes default, {', '.join(_FIXED)}",
                fix="use the archon or the fsdp backend, or remove the scaling from its config.json",
            )
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        assert scale == 1.0, f"{kind} is known to change angles only"
        return cls(frequencies.float())

    def table(self, length: int, device: torch.device) -> Tensor:
        """Return the angles of positions 0 to `length`, float32 [length, 1, 1, D], as Megatron takes them."""
        turns = torch.arange(length, device=device, dtype=torch.float32)[:, None] * self.frequencies.to(device)
        return torch.cat([turns, turns], -1)[:, None, None, :]
