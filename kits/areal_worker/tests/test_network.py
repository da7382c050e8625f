"""A worker's collectives listen where its controller was told, and nowhere else."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from areal_worker.network import network_environment


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
