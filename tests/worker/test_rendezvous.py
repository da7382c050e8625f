"""Ranks meet at a port that was free, and that nobody else was told of."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from areal_core.contract.errors import ResourceError
from areal_core.worker.rendezvous import address_towards, free_port, init_method, is_here


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


def test_a_seed_does_not_choose_the_ports() -> None:
    """Two runs of one user file that seeds `random` would ask for the same hundred ports, and for no others ever."""
    program = (
        "import random; from areal_core.worker.rendezvous import free_port; random.seed(7);"
        "print([free_port(is_free=lambda host, port: True) for _ in range(5)])"
    )

    one, other = (subprocess.check_output([sys.executable, "-c", program]) for _ in range(2))

    assert one.startswith(b"[") and one != other


def test_the_address_is_one_a_rank_can_listen_on() -> None:
    """`init_method` names host and port, in brackets for IPv6."""
    scheme, _, rest = init_method("127.0.0.1").partition("://")
    host, _, port = rest.rpartition(":")

    with socket.socket() as rank:
        rank.bind((host, int(port)))
    assert (scheme, init_method("::1").startswith("tcp://[::1]:")) == ("tcp", True)


def test_another_machines_address_is_none_to_meet_at() -> None:
    """A controller that asked for a port of a remote worker's address would find none: the worker itself chooses."""
    with pytest.raises(ResourceError, match=r"ports of 192\.0\.2\.1"):
        init_method("192.0.2.1")
    assert (is_here("127.0.0.1"), is_here("127.0.0.9"), is_here("192.0.2.1")) == (True, True, False)


def test_the_way_back_to_this_machine_is_one_of_its_addresses() -> None:
    """What a worker at that address would connect to."""
    assert address_towards("127.0.0.1") == "127.0.0.1"
