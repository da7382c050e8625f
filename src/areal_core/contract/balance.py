"""Which sequences go together: into micro-batches under a token budget, or onto data-parallel ranks.

Knows: lengths, the budget, and group ids whose rows must not be separated.
Does not know: what a row holds (`Batch.split` takes the plan) or how many ranks exist elsewhere.

Every row appears exactly once in a plan. No number has to divide another. The same input gives the
same plan in every process: rows ascend within a part, parts are ordered by their first row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from areal_core.contract.errors import BatchError
from areal_core.contract.partition import first_fit_decreasing, largest_differencing, longest_first

ALGORITHMS = ("ffd", "kk")


def microbatches(
    lengths: Sequence[int],
    max_tokens: int,
    groups: Sequence[Hashable] | None = None,
    algorithm: str = "ffd",
    min_bins: int = 1,
) -> list[list[int]]:
    """Plan micro-batches of at most `max_tokens` tokens each.

    Args:
        lengths: tokens per sequence.
        groups: one id per sequence; rows with equal ids stay together. None: each row is free.
        algorithm: "ffd", first-fit-decreasing: nearly the fewest bins. "kk", Karmarkar-Karp: bins of
            nearly equal sums; takes the plan of "ffd" where it would overflow the budget.
        min_bins: bins wanted at least, for example to be as many as another rank's; where there
            are fewer rows (or groups) than that, one bin for each.

    Returns:
        Row numbers per micro-batch. No rows, no micro-batches.

    Raises:
        BatchError: one row (or group) exceeds the budget, or an argument is unfit.
    """
    if algorithm not in ALGORITHMS:
        raise BatchError(f"unknown packing algorithm {algorithm!r}", why=f"there are {', '.join(ALGORITHMS)}")
    if max_tokens < 1:
        raise BatchError(f"the budget is {max_tokens} tokens", why="it must be at least 1")
    units = _units(len(lengths), groups)
    sizes = [sum(lengths[row] for row in unit) for unit in units]
    _check_budget(units, sizes, max_tokens, grouped=groups is not None)
    bins = first_fit_decreasing(sizes, max_tokens, min_bins)
    if algorithm == "kk":
        fewest = max(min_bins, -(-sum(sizes) // max_tokens))
        tries = (largest_differencing(sizes, num_bins) for num_bins in (fewest, len(bins)))
        bins = next((plan for plan in tries if _largest(sizes, plan) <= max_tokens and all(plan)), bins)
    return _rows(units, bins)


def balance(lengths: Sequence[int], num_parts: int, groups: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Share sequences out over `num_parts` ranks so that the largest token sum is small.

    Takes the better of Karmarkar-Karp and longest-first. With fewer rows (or groups) than parts
    the last parts are empty; a rank with nothing to do still takes part in every collective.

    Returns:
        Exactly `num_parts` lists of row numbers.

    Raises:
        BatchError: `num_parts` is below 1, or `groups` has another length.
    """
    if num_parts < 1:
        raise BatchError(f"cannot share rows over {num_parts} parts", why="there must be at least one")
    units = _units(len(lengths), groups)
    sizes = [sum(lengths[row] for row in unit) for unit in units]
    plans = (largest_differencing(sizes, num_parts), longest_first(sizes, num_parts))
    return _rows(units, min(plans, key=lambda plan: _largest(sizes, plan)))


def _units(num_rows: int, groups: Sequence[Hashable] | None) -> list[list[int]]:
    if groups is None:
        return [[row] for row in range(num_rows)]
    if len(groups) != num_rows:
        raise BatchError(f"{len(groups)} group ids for {num_rows} sequences", why="each sequence needs one")
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    return list(members.values())


def _check_budget(units: Sequence[Sequence[int]], sizes: Sequence[int], max_tokens: int, *, grouped: bool) -> None:
    for unit, size in zip(units, sizes, strict=True):
        if size > max_tokens:
            name = f"the group of rows {', '.join(map(str, unit))}" if grouped else f"row {unit[0]}"
            raise BatchError(
                f"{name} has {size} tokens, the budget is {max_tokens}",
                why=f"a {'group' if grouped else 'sequence'} is never cut",
                fix=f"raise max_tokens_per_microbatch to {size} or more, or shorten prompts or max_new_tokens",
            )


def _largest(sizes: Sequence[int], plan: Sequence[Sequence[int]]) -> int:
    return max((sum(sizes[position] for position in part) for part in plan), default=0)


def _rows(units: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    rows = [sorted(row for position in part for row in units[position]) for part in parts]
    return sorted(rows, key=lambda part: part[0] if part else sum(len(unit) for unit in units))
