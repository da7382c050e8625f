"""Packed micro-batches: where tokens lie, over context ranks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from areal_core.contract.batch import Batch
from areal_megatron.packing import Pass, passes
from areal_megatron.ranks import Ranks
from areal_torch.testing.batches import make_batch

SHAPES = [(2, 3), (1, 5), (4, 9), (1, 1)]


def ranks(context: int = 1, tensor: int = 1, place: int = 0) -> Ranks:
    """Return a rank of which only its place is asked. Any: it has no groups."""
    nobody: Any = None
    groups = ("tensor", "context", "data", "pipeline", "embedding", "expert", "expert_tensor", "expert_data")
    return Ranks(
        place={"p": 0, "d": 0, "c": place, "t": 0},
        degrees={"p": 1, "d": 1, "c": context, "t": tensor, "e": 1},
        **dict.fromkeys(groups, nobody),
    )


def shared(batch: Batch, context: int, tensor: int = 1) -> list[Pass]:
    """Return the pass of each context rank."""
    return [passes([batch], ranks(context, tensor, place))[0] for place in range(context)]


@pytest.mark.parametrize(("context", "tensor"), [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_every_token_is_seen_once(context: int, tensor: int) -> None:
    """Ranks have equal parts, a multiple of the tensor ranks, and together every slot."""
    batch = make_batch(SHAPES)
    found = shared(batch, context, tensor)
    seen = torch.cat([each.held for each in found])

    assert sorted(seen.tolist()) == list(range(found[0].num_slots))
    assert {len(each.held) for each in found} == {found[0].num_slots // context}
    assert len(found[0].held) % tensor == 0
    ids = torch.zeros(found[0].num_slots, dtype=torch.int64)
    for each in found:
        ids[each.held] = each.input_ids
    assert torch.equal(ids[found[0].slots], batch.tokens["input_ids"])


@pytest.mark.parametrize("context", [1, 2, 4])
def test_every_token_but_the_first_is_predicted_once_by_the_one_before(context: int) -> None:
    """Wherever the one before lies."""
    batch = make_batch(SHAPES)
    predicted: list[int] = []
    for each in shared(batch, context):
        rows, at = each.rows()
        assert torch.equal(each.input_ids[at], batch.tokens["input_ids"][rows - 1])
        predicted += rows.tolist()

    assert sorted(predicted) == batch.positions.nonzero().squeeze(1).tolist()


def test_context_ranks_share_the_front_and_the_back_of_every_sequence() -> None:
    """Megatron's order: of 4 pieces rank 0 has the first and the last, rank 1 those between."""
    batch = make_batch([(3, 5), (1, 3)])
    first, second = shared(batch, 2)

    assert first.held.tolist() == [0, 1, 6, 7, 8, 11]
    assert second.held.tolist() == [2, 3, 4, 5, 9, 10]


def test_passes_of_a_pipeline_are_of_one_size() -> None:
    """Stages send tensors of one shape, as many as the schedule wants, and no filling is longer than a sequence."""
    parts = [make_batch([(4, 9)]), make_batch([(1, 2), (2, 3)]), make_batch([(1, 1)])]
    found = passes(parts, ranks(context=2, tensor=2), alike=2)

    assert len(found) == 4
    assert len({each.num_slots for each in found}) == 1
    for each, part in zip(found, parts, strict=False):
        assert torch.equal(each.batch.tokens["input_ids"], part.tokens["input_ids"])
        assert each.longest == max(-(-length // 4) * 4 for length in part.lengths.tolist())
    assert [len(each.batch.lengths) for each in passes(parts, ranks())] == [1, 2, 1]
