"""The laws of packing: every row once, no budget exceeded, groups whole, nearly the fewest bins."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from areal_core.contract.balance import ALGORITHMS, balance, largest_differencing, longest_first, microbatches
from areal_core.contract.errors import BatchError

sizes = st.lists(st.integers(1, 40), max_size=14)


def sums(lengths: Sequence[int], plan: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of each part."""
    return [sum(lengths[row] for row in part) for part in plan]


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


@given(sizes, st.integers(0, 60), st.sampled_from(ALGORITHMS), st.integers(1, 20))
def test_every_row_is_in_one_bin_and_no_bin_is_over_budget(
    lengths: list[int], slack: int, algorithm: str, min_bins: int
) -> None:
    """Whatever the lengths, each row appears once, no bin is empty, and there are as many bins as asked for."""
    budget = max(lengths, default=1) + slack

    plan = microbatches(lengths, budget, algorithm=algorithm, min_bins=min_bins)

    assert sorted(itertools.chain(*plan)) == list(range(len(lengths)))
    assert all(plan)
    assert max(sums(lengths, plan), default=0) <= budget
    assert len(plan) >= min(min_bins, len(lengths))


@given(st.lists(st.tuples(st.integers(1, 20), st.sampled_from("abcd")), max_size=12), st.sampled_from(ALGORITHMS))
def test_groups_stay_together(rows: list[tuple[int, str]], algorithm: str) -> None:
    """Rows of one group are in one bin, also when they are not neighbours and groups differ in size."""
    lengths, groups = [length for length, _ in rows], [group for _, group in rows]
    budget = max((sum(n for n, g in rows if g == group) for group in groups), default=1)

    plan = microbatches(lengths, budget, groups=groups, algorithm=algorithm)
    shares = balance(lengths, 3, groups=groups)

    for parts in (plan, shares):
        owner = {row: number for number, part in enumerate(parts) for row in part}
        assert sorted(owner) == list(range(len(rows)))
        assert len({(groups[row], number) for row, number in owner.items()}) == len(set(groups))


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(20, 30))
def test_first_fit_decreasing_keeps_its_bound(lengths: list[int], budget: int) -> None:
    """FFD uses at most 11/9 of the fewest possible bins, plus one."""
    plan = microbatches(lengths, budget)

    assert len(plan) <= 11 / 9 * fewest_bins(lengths, budget) + 1


def test_long_rows_are_placed_first() -> None:
    """In the order given [3, 3, 3, 7, 7, 7] would need four bins of 10; the longest first need three."""
    assert microbatches([3, 3, 3, 7, 7, 7], 10) == [[0, 3], [1, 4], [2, 5]]


@given(st.lists(st.integers(1, 100), max_size=24), st.integers(1, 9))
@example([9, 6, 2, 7, 4, 6, 4, 3], 3)  # differencing alone gives 15, longest-first 14
def test_balance_is_never_worse_than_longest_first(lengths: list[int], num_parts: int) -> None:
    """The largest token sum is at most that of the greedy rule, and the parts are exactly as many as asked for."""
    shares = balance(lengths, num_parts)

    assert len(shares) == num_parts
    assert sorted(itertools.chain(*shares)) == list(range(len(lengths)))
    greedy = longest_first(lengths, num_parts)
    assert max(sums(lengths, shares)) <= max(sums(lengths, greedy))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 3))
def test_balance_is_close_to_the_best_possible(lengths: list[int], num_parts: int) -> None:
    """The largest sum is within 4/3 - 1/(3k) of the optimum, Graham's bound, checked against every assignment."""
    best = min(
        max(sum(n for n, owner in zip(lengths, owners, strict=True) if owner == part) for part in range(num_parts))
        for owners in itertools.product(range(num_parts), repeat=len(lengths))
    )

    largest = max(sums(lengths, balance(lengths, num_parts)))

    assert best <= largest <= best * (4 / 3 - 1 / (3 * num_parts)) + 1e-9


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_largest_differencing_is_evener_than_longest_first(num_parts: int) -> None:
    """Over many random batches the spread between the fullest and the emptiest part is smaller by far."""
    rng = random.Random(num_parts)
    spreads = {"kk": 0, "lpt": 0}
    for _ in range(40):
        lengths = [rng.randint(1, 1000) for _ in range(64)]
        for name, algorithm in (("kk", largest_differencing), ("lpt", longest_first)):
            totals = sums(lengths, algorithm(lengths, num_parts))
            spreads[name] += max(totals) - min(totals)

    assert 2 * spreads["kk"] < spreads["lpt"], spreads


def test_values_seen_elsewhere() -> None:
    """[5, 4, 3, 3] under a budget of 8: both algorithms fill two bins with 8 and 7 (AReaL gives the same sums)."""
    assert microbatches([5, 4, 3, 3], 8, algorithm="kk") == [[0, 2], [1, 3]]
    assert sums([5, 4, 3, 3], microbatches([5, 4, 3, 3], 8)) == [8, 7]
    assert sums([5, 4, 3, 3], balance([5, 4, 3, 3], 2)) == [8, 7]


def test_karmarkar_karp_falls_back_where_it_would_overflow() -> None:
    """Differencing [8, 7, 6, 5, 4] in two gives 16 and 14; a budget of 15 needs the plan of FFD, which fits."""
    lengths = [8, 7, 6, 5, 4]
    assert max(sums(lengths, largest_differencing(lengths, 2))) == 16

    plan = microbatches(lengths, 15, algorithm="kk")

    assert max(sums(lengths, plan)) <= 15


@pytest.mark.parametrize("lengths", [[], [7], [3, 3, 3]])
def test_fewer_rows_than_parts_leave_the_last_parts_empty(lengths: list[int]) -> None:
    """A rank may have nothing to do; nothing has to divide anything."""
    shares = balance(lengths, 4)

    assert [len(share) for share in shares] == [1] * len(lengths) + [0] * (4 - len(lengths))


def test_more_bins_than_rows_gives_a_bin_for_each_row() -> None:
    """min_bins is a wish: there are at most as many bins as rows, or groups."""
    assert microbatches([4, 4], 100, min_bins=5) == [[0], [1]]
    assert microbatches([4, 4, 4], 100, groups=[1, 1, 2], min_bins=5) == [[0, 1], [2]]
    assert microbatches([4, 4], 100, algorithm="kk", min_bins=5) == [[0], [1]]


def test_a_row_over_budget_is_named() -> None:
    """The error tells the row, its length and the budget; for groups, the rows."""
    with pytest.raises(BatchError, match="row 1 has 9 tokens, the budget is 8"):
        microbatches([3, 9, 2], 8)
    with pytest.raises(BatchError, match="the group of rows 0, 2 has 9 tokens, the budget is 8"):
        microbatches([4, 3, 5], 8, groups=["a", "b", "a"])


def test_unfit_arguments_are_refused() -> None:
    """An unknown algorithm, no budget, no parts, or too few group ids."""
    with pytest.raises(BatchError, match="'best'"):
        microbatches([1], 8, algorithm="best")
    with pytest.raises(BatchError, match="budget is 0"):
        microbatches([], 0, algorithm="kk")
    with pytest.raises(BatchError, match="0 parts"):
        balance([1], 0)
    with pytest.raises(BatchError, match="1 group ids for 2"):
        balance([1, 2], 2, groups=[0])


@given(sizes, st.sampled_from(ALGORITHMS))
def test_plans_are_written_in_one_canonical_order(lengths: list[int], algorithm: str) -> None:
    """Rows ascend in a bin and bins are ordered by their first row, so that every process writes the same plan."""
    plan = microbatches(lengths, 40, algorithm=algorithm)

    assert plan == sorted(sorted(part) for part in plan)
    assert plan == microbatches(tuple(lengths), 40, algorithm=algorithm)
