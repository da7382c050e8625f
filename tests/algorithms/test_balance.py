"""The laws of sharing rows out: every row once, groups whole, parts nearly even."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from areal_algorithms.balance import balance, largest_differencing, longest_first
from areal_core.contract.errors import BatchError


def sums(lengths: Sequence[int], plan: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of each part."""
    return [sum(lengths[row] for row in part) for part in plan]


@given(st.lists(st.tuples(st.integers(1, 20), st.sampled_from("abcd")), max_size=12))
def test_groups_stay_together(rows: list[tuple[int, str]]) -> None:
    """Rows of one group are in one part, also when they are not neighbours and groups differ in size."""
    lengths, groups = [length for length, _ in rows], [group for _, group in rows]

    shares = balance(lengths, 3, groups=groups)

    owner = {row: number for number, part in enumerate(shares) for row in part}
    assert sorted(owner) == list(range(len(rows)))
    assert len({(groups[row], number) for row, number in owner.items()}) == len(set(groups))


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
    """[5, 4, 3, 3] in two parts gives 8 and 7, the sums AReaL gives."""
    assert sums([5, 4, 3, 3], balance([5, 4, 3, 3], 2)) == [8, 7]


@pytest.mark.parametrize("lengths", [[], [7], [3, 3, 3]])
def test_fewer_rows_than_parts_leave_the_last_parts_empty(lengths: list[int]) -> None:
    """A rank may have nothing to do; nothing has to divide anything."""
    shares = balance(lengths, 4)

    assert [len(share) for share in shares] == [1] * len(lengths) + [0] * (4 - len(lengths))


def test_unfit_arguments_are_refused() -> None:
    """No parts, or too few group ids."""
    with pytest.raises(BatchError, match="0 parts"):
        balance([1], 0)
    with pytest.raises(BatchError, match="1 group ids for 2"):
        balance([1, 2], 2, groups=[0])


@given(st.lists(st.integers(1, 40), max_size=14), st.integers(1, 5))
def test_plans_are_written_in_one_canonical_order(lengths: list[int], num_parts: int) -> None:
    """Rows ascend in a part and parts are ordered by their first row, so that every process writes the same plan."""
    plan = balance(lengths, num_parts)

    filled = [part for part in plan if part]
    assert plan == sorted(sorted(part) for part in filled) + [[]] * (num_parts - len(filled))
    assert plan == balance(tuple(lengths), num_parts)
