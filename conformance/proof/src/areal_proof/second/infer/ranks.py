"""Linear layers cut among ranks. Here the ranks take turns in one process; each has its own columns or rows.

Knows: which layers are cut by their inputs, and how the ranks' results meet.
Does not know: weights of any model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CUT_BY_INPUT = ("self_attn.o_proj", "down_proj")


def product(x: Tensor, weight: Tensor, name: str, ranks: int) -> Tensor:
    """Return x W^T, computed part by part: summed where inputs are cut, side by side where outputs are."""
    if ranks == 1:
        return F.linear(x, weight)
    if name.endswith(CUT_BY_INPUT):
        shares = zip(x.chunk(ranks, -1), weight.chunk(ranks, 1), strict=True)
        return torch.stack([F.linear(part, cut) for part, cut in shares]).sum(0)
    return torch.cat([F.linear(x, cut) for cut in weight.chunk(ranks, 0)], -1)
