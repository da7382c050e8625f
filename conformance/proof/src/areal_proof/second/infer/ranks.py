"""Linear layers among ranks: each layer is on one stage, whose ranks have its columns or rows.

Ranks of one host take turns in one process.

Knows: which stage has which layer, which layers are cut by their inputs, and how the ranks' results meet.
Does not know: weights of any model, or how other hosts are asked for their results (`hosts`).
"""

from __future__ import annotations

import re
from typing import Protocol

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

CUT_BY_INPUT = ("self_attn.o_proj", "down_proj")


@frozen
class Cut:
    """How a model is cut: its stack of `layers` among `stages`, each layer among `ranks`."""

    layers: int
    ranks: int = 1
    stages: int = 1

    def stage(self, name: str) -> int:
        """Return which stage has a layer: the first the embeddings, the last what follows the stack."""
        number = re.match(r"model\.layers\.(\d+)\.", name)
        if number is not None:
            return int(number[1]) * self.stages // self.layers
        return 0 if name.startswith("model.embed_tokens.") else self.stages - 1


class OtherHosts(Protocol):
    """The other parts of a replica, seen from its leader."""

    num_hosts: int

    def shares(self, x: Tensor, name: str) -> list[Tensor]:
        """Return the share of every other host in a product, in the order of ranks."""

    def whole(self, part: int, x: Tensor, name: str) -> Tensor:
        """Return a product that one other host computes."""


def product(x: Tensor, weight: Tensor, name: str, cut: Cut, others: OtherHosts | None = None) -> Tensor:
    """Return x W^T, computed part by part: summed where inputs are cut, side by side where outputs are."""
    if others is not None and cut.stages > 1:
        stage = cut.stage(f"{name}.")
        return others.whole(stage, x, name) if stage else F.linear(x, weight)
    if cut.ranks == 1:
        return F.linear(x, weight)
    if others is None:
        return share(x, weight, name, slice(None), cut.ranks)
    return joined(
        [share(x, weight, name, slice(cut.ranks // others.num_hosts), cut.ranks), *others.shares(x, name)], name
    )


def share(x: Tensor, weight: Tensor, name: str, mine: slice, ranks: int) -> Tensor:
    """Return what the ranks of one host have of x W^T."""
    if name.endswith(CUT_BY_INPUT):
        pairs = list(zip(x.chunk(ranks, -1), weight.chunk(ranks, 1), strict=True))[mine]
        return joined([F.linear(part, columns) for part, columns in pairs], name)
    return joined([F.linear(x, rows) for rows in weight.chunk(ranks, 0)[mine]], name)


def joined(parts: list[Tensor], name: str) -> Tensor:
    """Return what several ranks, or hosts, have together."""
    return torch.stack(parts).sum(0) if name.endswith(CUT_BY_INPUT) else torch.cat(parts, -1)
