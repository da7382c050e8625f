"""Every row once per epoch, in a seeded order, whatever the order tasks finish in and wherever a run resumes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import DatasetError
from areal_core.rollout.tasks import TaskSource

ROWS = [{"number": number} for number in range(5)]


@given(num_rows=st.integers(1, 9), seed=st.integers(0, 99), epochs=st.integers(1, 5))
def test_each_epoch_is_a_permutation_of_the_rows(num_rows: int, seed: int, epochs: int) -> None:
    """Every row comes once per epoch; ids name epoch and row."""
    source = TaskSource([{"number": n} for n in range(num_rows)], seed=seed)

    for epoch in range(epochs):
        tasks = [source.next() for _ in range(num_rows)]
        assert sorted(task.row["number"] for task in tasks) == list(range(num_rows))
        assert [task.task_id for task in tasks] == [f"train/{epoch}/{task.row['number']}" for task in tasks]


def test_the_order_follows_the_seed_and_differs_between_epochs() -> None:
    """The same seed gives the same order; another epoch another one, the fifth too."""
    first, second = (TaskSource([{"n": n} for n in range(50)], seed=3) for _ in range(2))
    order = [first.next().row["n"] for _ in range(250)]

    assert order == [second.next().row["n"] for _ in range(250)]
    assert len({tuple(order[begin : begin + 50]) for begin in range(0, 250, 50)}) == 5


def test_without_shuffle_rows_come_in_order() -> None:
    """`shuffle=False` is the data set's own order."""
    source = TaskSource(ROWS, seed=1, shuffle=False)

    assert [source.next().row["number"] for _ in range(7)] == [0, 1, 2, 3, 4, 0, 1]


@given(data=st.data(), num_rows=st.integers(1, 6), issued=st.integers(0, 20))
def test_a_resumed_run_trains_every_prompt_exactly_once(data: st.DataObject, num_rows: int, issued: int) -> None:
    """Whatever was used when the state was taken, the rest comes again first, in order, then new ones.

    What failed is the first of the rest, as another attempt.
    """
    rows = [{"number": n} for n in range(num_rows)]
    source = TaskSource(rows, seed=2)
    order = [source.next() for _ in range(issued)]
    ended = data.draw(st.lists(st.sampled_from(range(issued)), unique=True) if issued else st.just([]))
    failed = data.draw(st.sets(st.sampled_from(ended)) if ended else st.just(set()))
    for index in ended:
        (source.fail if index in failed else source.use)(index)
    resumed = TaskSource(rows, seed=2)
    resumed.restore(json.loads(json.dumps(source.state())))

    running = [index for index in range(issued) if index not in ended]
    outstanding = [*sorted(failed), *running]
    again = [resumed.next() for _ in range(len(outstanding) + 3)]
    assert [task.index for task in again] == [*outstanding, issued, issued + 1, issued + 2]
    assert [task.task_id for task in again[: len(outstanding)]] == [order[index].task_id for index in outstanding]
    assert [task.attempt for task in again] == [int(task.index in failed) for task in again]
    assert not any(resumed.is_used(task.index) for task in again)
    for task in again:
        resumed.use(task.index)
    assert resumed.state()["frontier"] == issued + 3
    assert resumed.state()["used"] == resumed.state()["failed"] == []


def test_a_dropped_task_comes_next_with_the_same_id_as_a_new_attempt() -> None:
    """Dropping loses no prompt, and the attempt survives a resume."""
    source = TaskSource(ROWS, seed=1)
    first = source.next()
    source.next()
    source.issue_again(first.index)
    again = source.next()
    resumed = TaskSource(ROWS, seed=1)
    resumed.restore(source.state())

    assert (again.index, again.task_id, again.attempt) == (first.index, first.task_id, 1)
    assert resumed.next().attempt == 1
    for attempt in (2, 3):  # with the seeds of an earlier one it would be drawn alike, and dropped alike
        source.issue_again(first.index)
        assert source.next().attempt == attempt


def test_another_data_set_is_refused_on_resume() -> None:
    """A state of other rows or another seed would train some prompts twice."""
    state = TaskSource(ROWS, seed=1).state()

    with pytest.raises(DatasetError, match="rows 4, the saved run had 5"):
        TaskSource(ROWS[:4], seed=1).restore(state)
    with pytest.raises(DatasetError, match="seed 2, the saved run had 1"):
        TaskSource(ROWS, seed=2).restore(state)
    with pytest.raises(DatasetError, match="no rows"):
        TaskSource([], seed=1)


def test_other_rows_in_the_same_number_are_noticed() -> None:
    """The length alone does not tell two data sets apart; rows that json cannot hold are fine."""
    rows = [{"prompt": str(number), "image": object()} for number in range(100)]
    state = TaskSource(rows, seed=1).state()
    TaskSource(rows, seed=1).restore(state)

    with pytest.raises(DatasetError, match="the data set holds other rows"):
        TaskSource([{**row, "prompt": row["prompt"] + "?"} for row in rows], seed=1).restore(state)


@pytest.mark.parametrize("tenth", range(10))
def test_other_rows_in_a_tenth_of_the_data_set_are_noticed(tenth: int) -> None:
    """Wherever that is: the rows looked at are spread over all."""
    rows = [{"number": number} for number in range(1000)]
    state = TaskSource(rows, seed=1).state()
    there = range(100 * tenth, 100 * (tenth + 1))

    with pytest.raises(DatasetError, match="the data set holds other rows"):
        TaskSource([{"number": -1 - n if n in there else n} for n in range(1000)], seed=1).restore(state)


@given(data=st.data(), finished=st.sets(st.integers(0, 12)), kept=st.sets(st.integers(0, 12)))
def test_what_is_held_is_neither_issued_nor_passed_over(
    data: st.DataObject, finished: set[int], kept: set[int]
) -> None:
    """Whoever of the held ones is used first, and however far that moves the beginning, every task comes once."""
    before = TaskSource(ROWS, seed=1)
    for _ in range(13):
        before.next()
    for index in sorted(finished):
        before.use(index)
    source, done = TaskSource(ROWS, seed=1), set(finished)
    source.restore(before.state())
    held = kept - finished
    for index in sorted(held):
        source.hold(source.task(index))

    out: set[int] = set()
    for _ in range(20):
        if held and data.draw(st.booleans()):
            out.add(held.pop())
        else:
            task = source.next()
            assert task.index not in done | out | held, "issued, and there already"
            out.add(task.index)
        if out and data.draw(st.booleans()):
            index = data.draw(st.sampled_from(sorted(out)))
            out.discard(index)
            source.use(index)
            done.add(index)

    there = done | out | held
    assert set(range(max(there))) <= there, "passed over"
