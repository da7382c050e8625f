"""Bytes along a chain of ranks, over real gloo groups whose ranks are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from areal_torch.collective.chain import CLOSED, PIECE_BYTES, Chain, LinkBroken, along_hosts

WAIT_S = 3.0
Chains = Callable[[int], list[Chain]]


@pytest.fixture
def chains() -> Iterator[Chains]:
    """Make the ranks of a group; all have hung up after the test."""
    made: list[Chain] = []

    def make(size: int) -> list[Chain]:
        store, gloo = HashStore(), dist.ProcessGroupGloo  # type: ignore[attr-defined]
        seats = [f"seat {rank}" for rank in range(size)]

        def join(rank: int) -> Chain:
            options = gloo._Options()
            options._timeout = timedelta(seconds=WAIT_S)
            options._devices = [gloo.create_device(hostname="127.0.0.1")]
            return Chain(gloo(store, rank, size, options), rank, seats)

        with ThreadPoolExecutor(size) as threads:
            made.extend(threads.map(join, range(size)))
        return made

    yield make
    for chain in made:
        chain.hang_up()


def noise(num_bytes: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def outcome(work: Callable[[], Any]) -> Any:  # Any: what it gives, or its error
    try:
        return work()
    except LinkBroken as error:
        return error


def test_every_rank_gets_every_byte_of_every_call(chains: Chains) -> None:
    """Empty ones, single bytes, and those that are no whole number of pieces, in calls that follow each other."""
    sizes = [[5, 0, PIECE_BYTES + 1], [3 * PIECE_BYTES], [1, 1]]
    sent = [[noise(size, 10 * call + n) for n, size in enumerate(row)] for call, row in enumerate(sizes)]

    def take_part(chain: Chain, flats: list[list[Tensor]]) -> list[list[Tensor]]:
        for row in flats:
            chain.pass_on(row)
        chain.settle()
        return flats

    ranks = chains(4)
    rooms = [sent, *[[[torch.zeros_like(flat) for flat in row] for row in sent] for _ in ranks[1:]]]
    with ThreadPoolExecutor(len(ranks)) as threads:
        arrived = list(threads.map(take_part, ranks, rooms))

    for rank in arrived[1:]:
        assert all(torch.equal(*pair) for rows in zip(sent, rank, strict=True) for pair in zip(*rows, strict=True))


def test_a_piece_goes_on_before_the_next_has_come(chains: Chains) -> None:
    """The last rank holds the first piece while rank 0 has not sent the second: nobody waits for the whole."""
    first, middle, last = chains(3)
    pieces = [noise(PIECE_BYTES, number) for number in range(2)]
    room = torch.zeros(2 * PIECE_BYTES, dtype=torch.uint8)
    with ThreadPoolExecutor(2) as threads:
        passing = threads.submit(middle.pass_on, [torch.zeros_like(room)])
        arriving = threads.submit(last.pass_on, [room])
        first.pass_on(pieces[:1])
        first.settle()
        until = time.monotonic() + WAIT_S
        while not torch.equal(room[:PIECE_BYTES], pieces[0]):
            assert time.monotonic() < until, "the first piece has not come through"
        half = passing.done(), arriving.done()
        first.pass_on(pieces[1:])
        arriving.result()

    assert half == (False, False)
    assert torch.equal(room, torch.cat(pieces))


def test_who_hangs_up_wakes_its_own_threads_and_both_neighbours(chains: Chains) -> None:
    """At once, not when the group's own bound is over; the neighbours name who left."""
    first, middle, last = chains(3)
    waiting = threading.Barrier(3)

    def receive(chain: Chain) -> Any:
        waiting.wait()
        return outcome(lambda: chain.pass_on([torch.zeros(10, dtype=torch.uint8)]))

    with ThreadPoolExecutor(2) as threads:
        own, after = threads.submit(receive, middle), threads.submit(receive, last)
        waiting.wait()
        began = time.monotonic()
        middle.hang_up()
        errors = [own.result(), after.result()]
        seconds = time.monotonic() - began
    before = outcome(lambda: (first.pass_on([noise(10, 1)]), first.settle()))

    assert seconds < WAIT_S / 2
    assert all(isinstance(error, LinkBroken) for error in errors)
    assert str(errors[1]) == str(before) == f"seat 1 {CLOSED}"


def test_who_lost_one_neighbour_still_wakes_the_other(chains: Chains) -> None:
    """A rank whose sender is gone hangs up; the one behind it does not wait for its own bound."""
    first, middle, last = chains(3)
    with ThreadPoolExecutor(1) as threads:
        behind = threads.submit(outcome, lambda: last.pass_on([torch.zeros(10, dtype=torch.uint8)]))
        first.hang_up()
        lost = outcome(lambda: middle.pass_on([torch.zeros(10, dtype=torch.uint8)]))
        began = time.monotonic()
        middle.hang_up()
        error = behind.result()

    assert time.monotonic() - began < WAIT_S / 2
    assert (str(lost), str(error)) == (f"seat 0 {CLOSED}", f"seat 1 {CLOSED}")


def test_a_neighbour_that_sends_nothing_is_named(chains: Chains) -> None:
    """Within the group's bound."""
    _, last = chains(2)
    began = time.monotonic()
    error = outcome(lambda: last.pass_on([torch.zeros(10, dtype=torch.uint8)]))

    assert str(error) == "seat 0 sent nothing for too long"
    assert time.monotonic() - began < 2 * WAIT_S


@pytest.mark.parametrize(
    ("hosts", "first", "order"),
    [
        ("", "a", []),
        ("bcb", "a", [0, 2, 1]),
        ("babca", "a", [1, 4, 0, 2, 3]),
        ("cba", "a", [2, 0, 1]),
    ],
)
def test_a_chain_enters_every_host_once_beginning_with_the_senders(hosts: str, first: str, order: list[int]) -> None:
    """Receivers of one host follow each other; hosts are in the order in which they were named."""
    assert along_hosts(list(hosts), first) == order
