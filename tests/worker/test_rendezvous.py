"""Ranks meet at a port that was free, and that nobody else was told of."""

from __future__ import annotations

import socket

import pytest

from areal_core.contract.errors import ResourceError
from areal_core.worker.rendezvous import free_port, init_method


def test_a_taken_port_is_passed_over() -> None:
    """The next candidate is tried when one is in use."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        spare = free_port()

        assert free_port(candidates=[port, spare + 40_000 if spare < 25_000 else spare - 10_000]) != port
        with pytest.raises(ResourceError, match="none of 1 ports"):
            free_port(candidates=[port])


def test_no_port_is_given_twice() -> None:
    """A rank that has not bound its port yet does not lose it to another role."""
    given = [free_port(candidates=range(16_000, 16_400), is_free=lambda _host, _port: True) for _ in range(200)]

    assert len(set(given)) == 200


def test_the_address_is_one_a_rank_can_listen_on() -> None:
    """`init_method` names host and port, in brackets for IPv6."""
    scheme, _, rest = init_method("127.0.0.1").partition("://")
    host, _, port = rest.rpartition(":")

    with socket.socket() as rank:
        rank.bind((host, int(port)))
    assert (scheme, init_method("::1").startswith("tcp://[::1]:")) == ("tcp", True)
