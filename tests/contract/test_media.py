"""Columns with any number of rows per sequence: packed, joined, refused. Splitting is in `test_batch`."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from hypothesis import given

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode
from areal_core.contract.errors import BatchError
from areal_core.contract.media import Media
from areal_torch.testing.batches import assert_same_batch, episode_lists, make_batch, make_episode, make_trajectory
from areal_torch.testing.images import make_seeing_trajectory


@given(episode_lists(extras=True))
def test_packing_keeps_every_row_of_every_trajectory_in_order(episodes: list[Episode]) -> None:
    """A trajectory without media has no rows; a batch without any has no name."""
    batch = Batch.pack(episodes)
    wanted = [trajectory.media.get("patches") for episode in episodes for trajectory in episode.trajectories]
    if "patches" not in batch.media:
        assert all(rows is None for rows in wanted)
        return
    media = batch.media["patches"]
    for rows, kept in zip(wanted, media.rows.split(media.counts.tolist()), strict=True):
        assert len(kept) == 0 if rows is None else torch.equal(rows, kept)


def test_batches_with_and_without_media_are_joined() -> None:
    """An empty shard, or one of text, does not know the names of the others."""
    seen = Batch.pack([make_episode(make_seeing_trajectory(((1, 2),)))])
    blind = evolve(seen, media={})

    joined = Batch.concat([blind, seen])

    assert joined.media["pixel_values"].counts.tolist() == [0, 8]
    assert joined.media["image_grid_thw"].counts.tolist() == [0, 1]
    assert_same_batch(seen, joined.select([1]))


@pytest.mark.parametrize(
    "media",
    [
        Media(rows=torch.zeros(3, 2), counts=torch.tensor([1, 1])),
        Media(rows=torch.zeros(3, 2), counts=torch.tensor([3])),
        Media(rows=torch.zeros(3, 2), counts=torch.tensor([4, -1])),
        Media(rows=torch.zeros(2, 2), counts=torch.tensor([1, 1], dtype=torch.int32)),
    ],
)
def test_counts_that_do_not_fit_are_refused_by_name(media: Media) -> None:
    """Counts add up to the rows, one per sequence."""
    with pytest.raises(BatchError, match="media 'patches' have rows"):
        evolve(make_batch(), media={"patches": media})


def test_rows_that_differ_in_kind_are_refused() -> None:
    """Patches of two processors do not make one column."""
    rows = [make_trajectory(media={"patches": torch.zeros(2, width)}) for width in (3, 4)]
    with pytest.raises(BatchError, match="'patches' differs"):
        Batch.pack([make_episode(row) for row in rows])


def test_rows_without_counts_are_refused() -> None:
    """A file that lost one of them is no batch."""
    flat = Batch.pack([make_episode(make_seeing_trajectory())]).flat()
    with pytest.raises(BatchError, match="pixel_values come without counts"):
        Batch.from_flat({name: column for name, column in flat.items() if name != "counts/pixel_values"})


def test_images_nobody_prepared_are_refused() -> None:
    """Files are no rows: training on the placeholder alone would be silent."""
    raw = evolve(make_trajectory(), images=(b"png",))
    with pytest.raises(BatchError, match="1 of 2 trajectories hold images as files"):
        Batch.pack([make_episode(raw, make_trajectory())])
