"""Rotary positions: the angles that Megatron's attention turns queries and keys by (arXiv:2104.09864).

Knows: the table Megatron takes.
Does not know: heads or layers.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_torch.rotary import CHANGE_ANGLES, frequencies_of


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
        frequencies, scale = frequencies_of(path, config, head_dim, engine="megatron", kinds=CHANGE_ANGLES)
        assert scale == 1.0, "the kinds named change angles only"
        return cls(frequencies)

    def table(self, length: int, device: torch.device) -> Tensor:
        """Return the angles of positions 0 to `length`, float32 [length, 1, 1, D], as Megatron takes them."""
        turns = torch.arange(length, device=device, dtype=torch.float32)[:, None] * self.frequencies.to(device)
        return torch.cat([turns, turns], -1)[:, None, None, :]
