"""Linear layers cut among ranks: each has its own columns or rows. Those of one host take turns in one process.

Knows: which layers are cut by their inputs, and how the ranks' results meet.
Does not know: weights of any model, or how other hosts are asked for their results (`hosts`).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

CUT_BY_INPUT = ("self_attn.o_proj", "down_proj")


class OtherHosts(Protocol):
    """The other parts of a replica, seen from its leader."""

    num_hosts: int

    def shares(self, x: Tensor, name: str) -> list[Tensor]:
        """Return the share of every other host in a product, in the order of ranks."""


def product(x: Tensor, weight: Tensor, name: str, ranks: int, others: OtherHosts | None = None) -> Tensor:
    """Return x W^T, computed part by part: summed where inputs are cut, side by side where outputs are."""
    if ranks == 1:
        return F.linear(x, weight)
    if others is None:
        return share(x, weight, name, slice(None), ranks)
    return joined([share(x, weight, name, slice(ranks // others.num_hosts), ranks), *others.shares(x, name)], name)


def share(x: Tensor, weight: Tensor, name: str, mine: slice, ranks: int) -> Tensor:
    """Return what the ranks of one host have of x W^T."""
    if name.endswith(CUT_BY_INPUT):
        pairs = list(zip(x.chunk(ranks, -1), weight.chunk(ranks, 1), strict=True))[mine]
        return joined([F.linear(part, cut) for part, cut in pairs], name)
    return joined([F.linear(x, cut) for cut in weight.chunk(ranks, 0)[mine]], name)


def joined(parts: list[Tensor], name: str) -> Tensor:
    """Return what several ranks, or hosts, have together."""
    return torch.stack(parts).sum(0) if name.endswith(CUT_BY_INPUT) else torch.cat(parts, -1)
