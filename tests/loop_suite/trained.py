"""What a run trained on, to the bit: to compare runs that should have trained alike.

Knows: every column of a batch.
Does not know: how the runs differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch

if TYPE_CHECKING:
    from areal_core.rollout.groups import EpisodeGroup

Columns = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Per column of a batch its dtype, shape and bytes."""


def columns(batch: Batch, *, but: Sequence[str] = ()) -> Columns:
    """Return the columns of a batch, but those named."""
    return {
        name: (str(column.dtype), tuple(column.shape), column.contiguous().numpy(force=True).tobytes())
        for name, column in batch.flat().items()
        if name not in but
    }


def packed(groups: Sequence[EpisodeGroup], *, but: Sequence[str] = ()) -> Columns:
    """Return the columns of the batch that groups make."""
    return columns(Batch.pack([episode for group in groups for episode in group.episodes]), but=but)


def sequences(batch: Batch, *, but: Sequence[str] = ()) -> list[Columns]:
    """Return the columns of each sequence of a batch."""
    return [columns(batch.select([row]), but=but) for row in range(batch.num_sequences)]


def alike(what: str, got: Sequence[Columns], wanted: Sequence[Columns]) -> None:
    """Expect as many batches, each with the same bits."""
    expect(len(got) == len(wanted), f"{what}: {len(got)} batches were trained, {len(wanted)} were to be")
    for number, (left, right) in enumerate(zip(got, wanted, strict=True)):
        other = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
        expect(not other, f"{what}: batch {number} differs in {', '.join(other)}")
