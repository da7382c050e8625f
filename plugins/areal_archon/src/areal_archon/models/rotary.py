"""Rotary positions: how queries and keys are turned by a token's place (arXiv:2104.09864).

Knows: angles of positions.
Does not know: heads or layers. The frequencies are no parameter and no buffer, so a model built on the meta
device does not lose them.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_torch.rotary import CHANGE_ANGLES, CHANGE_SIZES, frequencies_of


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
        return cls(*frequencies_of(path, config, head_dim, engine="archon", kinds=CHANGE_ANGLES + CHANGE_SIZES))

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each [T, D], of int64 positions [T]."""
        turns = positions[:, None].float() * self.frequencies.to(positions.device)
        both = torch.cat([turns, turns], -1)
        return (both.cos() * self.scale).to(dtype), (both.sin() * self.scale).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys [H, T, D], whose halves are the two coordinates of each pair."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin
