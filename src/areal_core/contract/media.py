"""Columns with any number of rows per sequence, such as the patches of its images.

Knows: rows, and how many are each sequence's.
Does not know: what the rows mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import BatchError


@frozen(kw_only=True, eq=False)
class Media:
    """A column with any number of rows per sequence: rows [R, ...], counts int64 [N], which add up to R.

    Example: two images of four patches in the first of two sequences: rows [8, width], counts [8, 0].
    """

    rows: Tensor
    counts: Tensor

    def select(self, index: Tensor) -> Media:
        """Return the rows of these sequences, by number and in this order."""
        starts = self.counts.cumsum(0) - self.counts
        return Media(rows=self.rows[runs(starts[index], self.counts[index])], counts=self.counts[index])

    def to(self, device: torch.device | str) -> Media:
        """Return the same rows on another device."""
        return Media(rows=self.rows.to(device), counts=self.counts.to(device))

    def check(self, name: str, num_sequences: int) -> None:
        """Refuse rows that are not those of so many sequences; counts are read on the CPU only.

        Raises:
            BatchError: counts are of another number or dtype, or do not add up to the rows.
        """
        counts = self.counts
        fits = tuple(counts.shape) == (num_sequences,) and counts.dtype == torch.int64 and self.rows.ndim > 0
        if fits and counts.is_cpu:
            fits = bool((counts >= 0).all()) and int(counts.sum()) == len(self.rows)
        if not fits:
            raise BatchError(
                f"media {name!r} have rows {tuple(self.rows.shape)} and counts {counts.dtype} {tuple(counts.shape)}",
                why=f"counts are int64, one for each of {num_sequences} sequences, and add up to the rows",
            )


def pack_media(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Media]:
    """Pack the media of sequences by name; a sequence that lacks a name has no rows of it.

    Raises:
        BatchError: rows of one name differ in dtype or shape.
    """
    packed: dict[str, Media] = {}
    for name in sorted({name for media in found for name in media}):
        rows = torch.cat(alike(name, [media[name] for media in found if name in media], from_dim=1))
        counts = [len(media[name]) if name in media else 0 for media in found]
        packed[name] = Media(rows=rows, counts=torch.tensor(counts, dtype=torch.int64))
    return packed


def concat_media(batches: Sequence[tuple[Tensor, Mapping[str, Media]]]) -> dict[str, Media]:
    """Join the media of batches, each with a tensor of one entry per sequence; a batch may lack a name.

    Raises:
        BatchError: rows of one name differ in dtype or shape.
    """
    joined: dict[str, Media] = {}
    for name in sorted({name for _, media in batches for name in media}):
        rows = torch.cat(alike(name, [media[name].rows for _, media in batches if name in media], from_dim=1))
        counts = [media[name].counts if name in media else torch.zeros_like(lengths) for lengths, media in batches]
        joined[name] = Media(rows=rows, counts=torch.cat(counts))
    return joined


def runs(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the row numbers of runs that begin at `starts`, one run after another; int64 [sum of lengths]."""
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    offsets = torch.arange(total, device=starts.device) - (ends - lengths).repeat_interleave(lengths)
    return starts.repeat_interleave(lengths) + offsets


def alike(name: str, columns: Sequence[Tensor], *, from_dim: int) -> list[Tensor]:
    """Return the columns if they can be joined; sizes before dimension `from_dim` may differ.

    Raises:
        BatchError: they have different dtypes or shapes.
    """
    kinds = {(column.dtype, tuple(column.shape[from_dim:])) for column in columns}
    if len(kinds) > 1:
        raise BatchError(
            f"column {name!r} differs from sequence to sequence: {sorted(map(str, kinds))}",
            why="a packed column has one dtype and one shape",
        )
    return list(columns)
