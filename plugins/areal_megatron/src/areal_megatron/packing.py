"""Packed micro-batches as Megatron takes them: where each token lies, and which of them this rank's layers see.

Knows: sequences end to end, filled up so that ranks have equal parts; Megatron's order of tokens over context ranks.
Does not know: layers or losses. Legend: T tokens of the batch, S slots.

With c context ranks every sequence is filled up to 2 c pieces, of which rank r has the r-th from the front and the
r-th from the back: so each has as much to do under a causal mask. What fills is behind the tokens, so no token sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import lcm

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS
from areal_megatron.library import PackedSeqParams
from areal_megatron.ranks import Ranks
from areal_torch.attention import Packing
from areal_torch.microbatches import placeholder


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]  # megatron is not typed
    """What travels through the layers, with what the layers of a CPU need besides."""

    packing: Packing | None = None
    """The slots of all context ranks."""
    natural: Tensor | None = None
    """With context ranks: where, among the tokens of all of them rank by rank, the one of each slot is; int64 [S]."""
    routes: Tensor | None = None
    """Recorded experts of the tokens that this rank's routers see, int64 [S / c / t, L, K]; -1 where they choose."""


@frozen(kw_only=True, eq=False)
class Pass:
    """One micro-batch as stages see it.

    `slots` int64 [T] tells where each token lies, `held` int64 [S / c] which slots this rank's layers see.
    """

    batch: Batch
    slots: Tensor
    held: Tensor
    num_slots: int
    longest: int
    sequences: PackedSequences

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens this rank's layers see, [S / c]."""
        ids = self.batch.tokens["input_ids"]
        filled: Tensor = ids.new_zeros(self.num_slots).index_copy(0, self.slots, ids)
        return filled[self.held]

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the tokens that this rank's layers predict, and at which of their outputs: int64 [R] each."""
        tokens = self.batch.positions.nonzero().squeeze(1)
        place = torch.full((self.num_slots,), -1, device=tokens.device)
        place[self.held] = torch.arange(len(self.held), device=tokens.device)
        at = place[self.slots[tokens - 1]]
        return tokens[at >= 0], at[at >= 0]


def passes(parts: Sequence[Batch], ranks: Ranks, *, alike: int = 0) -> list[Pass]:
    """Return micro-batches as passes.

    Args:
        alike: 0, or the number of which there must be a multiple, all of one size: a pipeline's stages take turns
            with tensors of one shape. Placeholders and sequences of zeros fill up.
    """
    filling = [placeholder(parts[0].device) for _ in range(-len(parts) % alike)] if alike else []
    plans = [_lengths(batch, ranks) for batch in (*parts, *filling)]
    size = max(sum(lengths) for lengths in plans) if alike else 0
    return [_pass(batch, plan, size, ranks) for batch, plan in zip((*parts, *filling), plans, strict=True)]


def _lengths(batch: Batch, ranks: Ranks) -> list[int]:
    """Return how many slots each sequence takes."""
    piece = _piece(ranks)
    return [-(-length // piece) * piece for length in batch.lengths.tolist()]


def _piece(ranks: Ranks) -> int:
    context = ranks.degrees["c"]
    return 2 * context if context > 1 else 1


def _pass(batch: Batch, lengths: list[int], size: int, ranks: Ranks) -> Pass:
    """Lay out one micro-batch on at least `size` slots."""
    device, real = batch.device, len(lengths)
    unit = lcm(_piece(ranks), ranks.degrees["c"] * ranks.degrees["t"])
    missing = -(-max(size, sum(lengths)) // unit) * unit - sum(lengths)
    whole, rest = divmod(missing, max(lengths))  # no longer than the longest: attention costs squares
    lengths = [*lengths, *[max(lengths)] * whole, *[rest] * (rest > 0)]
    sizes = torch.tensor(lengths, device=device)
    ends = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    positions = torch.arange(int(ends[-1]), device=device) - ends[:-1].repeat_interleave(sizes)
    slots = batch.positions + ends[:real].repeat_interleave(batch.lengths)
    held, natural = _share(positions, sizes, ranks)
    cu_seqlens, longest = ends.to(torch.int32), max(lengths)
    packing = Packing(
        cu_seqlens=cu_seqlens,
        positions=positions,
        predicted=slots[:0],
        runs=tuple((len(list(run)), length) for length, run in groupby(lengths)),
        max_length=longest,
    )
    sequences = PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        cu_seqlens_q_padded=cu_seqlens,
        cu_seqlens_kv_padded=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        packing=packing,
        natural=natural,
    )
    if ROUTED_EXPERTS in batch.tokens:
        sequences.routes = _routes(batch, slots, len(positions))[held].chunk(ranks.degrees["t"])[ranks.place["t"]]
    return Pass(batch=batch, slots=slots, held=held, num_slots=len(positions), longest=longest, sequences=sequences)


def _routes(batch: Batch, slots: Tensor, num_slots: int) -> Tensor:
    """Return the recorded experts of each slot's pass: row t of the column is of the pass over token t - 1."""
    column = batch.tokens[ROUTED_EXPERTS].to(torch.int64)
    routes: Tensor = column.new_full((num_slots, *column.shape[1:]), -1)
    tokens = batch.positions.nonzero().squeeze(1)
    routes[slots[tokens - 1]] = column[tokens]
    return routes


def _share(positions: Tensor, sizes: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor | None]:
    """Return this context rank's slots, and how to find every slot among those of all ranks."""
    context = ranks.degrees["c"]
    if context == 1:
        return torch.arange(len(positions), device=positions.device), None
    piece = positions // (sizes // (2 * context)).repeat_interleave(sizes)
    owner = torch.minimum(piece, 2 * context - 1 - piece)
    order = owner.argsort(stable=True)
    return order.chunk(context)[ranks.place["c"]], order.argsort()
