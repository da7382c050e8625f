"""A rank's place in a chain: what comes from the rank before goes on to the next one, piece by piece, as it comes.

    rank 0  ->  rank 1  ->  rank 2  ->  ...

A tree sends everything several times over the link of rank 0. In a chain every link carries it once in each
direction, so many receivers take about as long as one, and a piece more for each rank on the way.

Knows: which pieces are under way, and which neighbour failed.
Does not know: what the bytes are, or how the group was made.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 512 * 1024
"""Smaller ones fill a long chain sooner; larger ones cost less of the processor."""
DIRECT_PIECE_BYTES = 4 * 1024 * 1024
"""The same where nobody passes them on. Not larger, for a wait is for one of them."""
CLOSED = "closed the connection"
"""How it ends for those whose neighbour has left: the cause is elsewhere."""
_UNUSED_TAG = 2**31 - 1
_AT_ONCE = timedelta(milliseconds=1)


class LinkBroken(RuntimeError):
    """A neighbour, who is named, fell silent or closed the connection."""


class Chain:
    """One rank of a gloo group, made by hand. Calls are made on every rank with as many bytes, in the same order.

    Args:
        group: a `ProcessGroupGloo`. Any: torch has no stub for it.
        rank: this process's.
        seats: who sits at each rank, as errors name them.
    """

    def __init__(self, group: Any, rank: int, seats: Sequence[str]) -> None:
        self._group = group
        self._rank = rank
        self._seats = tuple(seats)
        self._has_next = rank + 1 < len(self._seats)
        self._tags = itertools.count()
        self._leaving: deque[tuple[Any, Tensor]] = deque()

    def pass_on(self, flats: Sequence[Tensor]) -> None:
        """Receive these bytes, or on rank 0 take them, and pass them on; uint8 [num_bytes] each.

        All have arrived on return, and some may still leave: they must not change before the next call has returned,
        or `settle`.

        Raises:
            LinkBroken: a neighbour is gone, or nothing moved for as long as the group waits.
        """
        size = PIECE_BYTES if len(self._seats) > 2 else DIRECT_PIECE_BYTES
        pieces = [(next(self._tags), piece) for flat in flats if flat.numel() for piece in torch.split(flat, size)]
        arriving = []
        if self._rank:
            with self._naming(self._rank - 1, "sent nothing"):
                # All at once, so that the rank before never has to ask whether it may send.
                arriving = [self._group.recv([piece], self._rank - 1, tag) for tag, piece in pieces]
        self.settle()
        for number, (tag, piece) in enumerate(pieces):
            if self._rank:
                with self._naming(self._rank - 1, "sent nothing"):
                    arriving[number].wait()
            if self._has_next:
                with self._naming(self._rank + 1, "took nothing"):
                    self._leaving.append((self._group.send([piece], self._rank + 1, tag), piece))

    def settle(self) -> None:
        """Wait until everything has left."""
        while self._leaving:
            work, _ = self._leaving.popleft()
            with self._naming(self._rank + 1, "took nothing"):
                work.wait()

    def hang_up(self) -> None:
        """Close every connection of this rank; whoever waits for it is woken, also in this process. Never raises.

        Gloo has no call for it: leaving a group does not wake its own waiting threads, and aborting it none at all
        that sends or receives. A wait that ends too late does close all connections; where one is closed already,
        nobody waits for it.
        """
        for neighbour in (self._rank - 1, self._rank + 1):
            if 0 <= neighbour < len(self._seats):
                with suppress(RuntimeError):
                    self._group.recv([torch.empty(1, dtype=torch.uint8)], neighbour, _UNUSED_TAG).wait(_AT_ONCE)
        self._leaving.clear()

    @contextmanager
    def _naming(self, neighbour: int, late: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            what = f"{late} for too long" if "Timed out" in str(error) else CLOSED
            raise LinkBroken(f"{self._seats[neighbour]} {what}") from error


def along_hosts(hosts: Sequence[str], first: str) -> list[int]:
    """Return the order of receivers on these hosts in which each host is entered once, that of rank 0 first.

    So what lies between two hosts carries the bytes once, and the rest of the way is within hosts.
    """
    seen = {first: 0}
    for host in hosts:
        seen.setdefault(host, len(seen))
    return sorted(range(len(hosts)), key=lambda number: seen[hosts[number]])
