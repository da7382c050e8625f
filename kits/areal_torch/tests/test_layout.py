"""How things are shared out over ranks, and which box of a tensor that leaves to each."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from areal_core.contract.errors import LayoutError
from areal_torch.layout import check_shares, coordinates, largest_share, share_of
from areal_torch.pieces import runs_of


@pytest.mark.parametrize("axes", ["pt", "dt", "pd", "dc", "ct"])
def test_ranks_are_counted_along_tensor_then_context_then_data_ranks_then_stages(axes: str) -> None:
    """Ranks that talk most are neighbours."""
    places = [coordinates(dict.fromkeys(axes, 2), rank) for rank in range(4)]

    assert [tuple(place[axis] for axis in axes) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(set(place) == {"p", "d", "c", "t"} for place in places)


@given(size=st.integers(1, 200), degree=st.integers(1, 9))
def test_shares_are_those_of_torch(size: int, degree: int) -> None:
    """Every thing has one rank, in order, as `Tensor.chunk` cuts; ranks beyond have none."""
    cut = [part.tolist() for part in torch.arange(size).chunk(degree)]

    shares = [list(share_of(size, degree, rank)) for rank in range(degree)]

    assert shares == cut + [[]] * (degree - len(cut))
    assert len(shares[0]) == largest_share(size, degree)


@given(size=st.integers(1, 60), degree=st.integers(2, 9))
def test_a_layout_that_leaves_a_rank_without_any_is_refused(size: int, degree: int) -> None:
    """And no other: unlike shares are fine."""
    if len(torch.arange(size).chunk(degree)) == degree:
        check_shares("t", degree, size, "vocabulary entries")
    else:
        with pytest.raises(LayoutError, match=f"t{degree} leaves a tensor rank without any of {size} vocabulary"):
            check_shares("t", degree, size, "vocabulary entries")


@given(rows=st.integers(1, 160), data=st.integers(1, 5), tensor=st.integers(1, 4))
def test_data_ranks_share_what_their_tensor_rank_has(rows: int, data: int, tensor: int) -> None:
    """Rows are cut over tensor ranks and each part over data ranks, however unlike the parts are.

    torch says otherwise of 145 rows over three data and two tensor ranks.
    """
    placements = [_StridedShard(0, split_factor=tensor), Shard(0)]
    for t, part in enumerate(_chunks(torch.arange(rows), tensor)):
        for d, own in enumerate(_chunks(part, data)):
            held, columns = runs_of((rows, 7), placements, (data, tensor), (d, t))

            assert list(held) == own.tolist()
            assert columns == range(7)


def test_what_is_not_cut_is_whole() -> None:
    """Along other dimensions, and over ranks that hold the same."""
    held = runs_of((5, 4), [Replicate(), Shard(0), Shard(1)], (2, 2, 2), (1, 1, 0))

    assert held == [range(3, 5), range(2)]


def _chunks(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    found = list(tensor.chunk(count))
    return found + [tensor[:0]] * (count - len(found))
