"""Cutting a shard, and the checks before it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_torch.microbatches import check_batch, cut, plan_bins
from areal_torch.testing.batches import assert_same_batch, make_batch


def sums(lengths: Sequence[int], plan: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of each bin."""
    return [sum(lengths[row] for row in rows) for rows in plan]


def fewest_bins(lengths: Sequence[int], capacity: int) -> int:
    """Find the optimum by search over all assignments, without the symmetric ones."""
    best = len(lengths)

    def place(position: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if position == len(lengths):
            best = len(rooms)
            return
        for number, room in enumerate(rooms):
            if lengths[position] <= room:
                place(position + 1, [*rooms[:number], room - lengths[position], *rooms[number + 1 :]])
        place(position + 1, [*rooms, capacity - lengths[position]])

    place(0, [])
    return best


@given(st.lists(st.integers(1, 40), max_size=14), st.integers(0, 60))
def test_every_row_is_in_one_bin_and_no_bin_is_over_budget(lengths: list[int], slack: int) -> None:
    """Whatever the lengths, each row appears once and no bin is empty."""
    budget = max(lengths, default=1) + slack

    plan = plan_bins(lengths, budget)

    assert sorted(itertools.chain(*plan)) == list(range(len(lengths)))
    assert all(plan)
    assert max(sums(lengths, plan), default=0) <= budget


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(20, 30))
def test_first_fit_decreasing_keeps_its_bound(lengths: list[int], budget: int) -> None:
    """FFD uses at most 11/9 of the fewest possible bins, plus one."""
    plan = plan_bins(lengths, budget)

    assert len(plan) <= 11 / 9 * fewest_bins(lengths, budget) + 1


def test_long_rows_are_placed_first() -> None:
    """In the order given [3, 3, 3, 7, 7, 7] would need four bins of 10; the longest first need three."""
    assert plan_bins([3, 3, 3, 7, 7, 7], 10) == [[0, 3], [1, 4], [2, 5]]


def test_values_seen_elsewhere() -> None:
    """[5, 4, 3, 3] under a budget of 8 fills two bins with 8 and 7 (AReaL gives the same sums)."""
    assert sums([5, 4, 3, 3], plan_bins([5, 4, 3, 3], 8)) == [8, 7]


def test_a_row_over_budget_is_named() -> None:
    """The error tells the row, its length and the budget."""
    with pytest.raises(BatchError, match="row 1 has 9 tokens, the budget is 8"):
        plan_bins([3, 9, 2], 8)


@given(st.lists(st.integers(1, 40), max_size=14))
def test_plans_are_written_in_one_canonical_order(lengths: list[int]) -> None:
    """Rows ascend in a bin and bins are ordered by their first row, so that every process writes the same plan."""
    plan = plan_bins(lengths, 40)

    assert plan == sorted(sorted(rows) for rows in plan)
    assert plan == plan_bins(tuple(lengths), 40)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(9, 30))
def test_every_token_is_in_exactly_one_microbatch(lengths: list[int], max_tokens: int) -> None:
    """The column `row` brings every token back to its place; budgets hold; lengths ascend in each."""
    total = sum(lengths)
    batch = Batch.of({"input_ids": torch.arange(total)}, {}, torch.tensor(lengths, dtype=torch.int64))

    parts = cut(batch, max_tokens)

    rows = torch.cat([part.tokens["row"] for part in parts]) if parts else torch.zeros(0, dtype=torch.int64)
    assert sorted(rows.tolist()) == list(range(total))
    for part in parts:
        assert 0 < part.num_tokens <= max_tokens
        assert torch.equal(part.tokens["input_ids"], part.tokens["row"])
        assert part.lengths.tolist() == sorted(part.lengths.tolist())


def test_cutting_keeps_the_columns_of_each_sequence() -> None:
    """A sequence is the same before and after."""
    batch = make_batch([(2, 3), (1, 5), (2, 3)])

    parts = cut(batch, 6)

    for part in parts:
        for row in range(part.num_sequences):
            token = int(part.tokens["row"][int(part.cu_seqlens[row])])
            source = batch.select([int(batch.sequence_ids[token])])
            found = part.select([row])
            plain = Batch.of(
                {name: found.tokens[name] for name in source.tokens.keys()},  # noqa: SIM118
                dict(found.sequences.items()),
                found.lengths,
            )
            assert_same_batch(source, plain)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (make_batch([(1, 2)]), "lacks the token columns advantages"),
        (
            make_batch([(1, 2), (2, 9)]).with_tokens(advantages=torch.zeros(14)),
            "sequence 1 has 11 tokens, the limit is 10",
        ),
        (
            make_batch([(1, 2)]).with_tokens(advantages=torch.zeros(3), input_ids=torch.tensor([1, 64, 2])),
            "token ids run from 1 to 64",
        ),
        (
            make_batch([(1, 2)]).with_tokens(advantages=torch.zeros(3), input_ids=torch.tensor([1, -1, 2])),
            "token ids run from -1 to 2",
        ),
    ],
)
def test_unfit_batches_are_refused(batch: Batch, says: str) -> None:
    """Before anything is computed: a missing column, a long sequence, a foreign token."""
    with pytest.raises(BatchError, match=says):
        check_batch(batch, columns=frozenset({"advantages"}), max_tokens=10, context_length=100, vocab_size=64)


def test_the_context_length_limits_sequences_too() -> None:
    """The error says which of the two limits it was."""
    with pytest.raises(BatchError, match="positions end there"):
        check_batch(make_batch([(2, 9)]), columns=frozenset(), max_tokens=100, context_length=10, vocab_size=64)
