"""Ranks meet at a port that was free, and that nobody else was told of."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from areal_core.contract.errors import ResourceError
from areal_core.worker.rendezvous import address_towards, free_port, init_method, is_here, network_environment


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


def test_collectives_keep_to_the_interface_of_an_address() -> None:
    """Law 11: their listeners are not authenticated, nor is NCCL's service. A loopback alias is on its interface."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"

    assert network_environment("127.0.0.2") == {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "NCCL_RAS_ENABLE": "0",
    }
    assert network_environment("192.0.2.1") == {"NCCL_RAS_ENABLE": "0"}


def test_every_library_keeps_to_an_address_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two networks is reached on the one its scheduler tells."""
    address = SimpleNamespace(address="10.1.2.3")
    other = SimpleNamespace(address="10.9.2.3")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"lo": [], "eth0": [other], "ib0": [address]})

    interfaces = {f"{library}_SOCKET_IFNAME": "ib0" for library in ("GLOO", "NCCL", "HCCL")}
    assert network_environment("10.1.2.3") == {**interfaces, "NCCL_RAS_ENABLE": "0"}


def test_the_way_back_to_this_machine_is_one_of_its_addresses() -> None:
    """What a worker at that address would connect to."""
    assert address_towards("127.0.0.1") == "127.0.0.1"
