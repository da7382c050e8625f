"""Addresses of clusters that are none, and of those where nobody is: told at once, with what to do."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from areal_core.contract.errors import ConfigError, ResourceError

cluster = pytest.importorskip("areal_ray.cluster")


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:10001", "http://10.0.0.1:8265", "head:six", ":6379"])
def test_what_is_no_address_is_refused_with_one_that_is(address: str) -> None:
    """The dashboard's and the client's are others."""
    with pytest.raises(ConfigError, match="is no address of a Ray cluster") as caught:
        asyncio.run(cluster.join(address, 30.0))
    assert "10.0.0.1:6379" in caught.value.fix


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    """Ray itself would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ResourceError, match=f"no Ray cluster answers at '127.0.0.1:{port}'") as caught:
        asyncio.run(cluster.join(f"127.0.0.1:{port}", 30.0))
    assert "Connection refused" in caught.value.why and "ray start --head" in caught.value.fix


_JOINS = """
import asyncio, sys
from areal_ray.cluster import join
try:
    asyncio.run(join(sys.argv[1], 1.0))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_an_address_that_takes_connections_and_says_nothing_is_given_up_in_time() -> None:
    """As a half-open link does, or a server of another kind; the process can end, though Ray still tries."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", _JOINS, address], capture_output=True, text=True, timeout=60, check=True
        )

    assert f"ResourceError: no Ray cluster answers at '{address}'" in done.stdout
    assert "no answer within 1 s" in done.stdout


def test_a_link_that_hangs_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told; the thread that hangs does not hold up the end of the process."""
    monkeypatch.setattr(cluster._LINK, "join", lambda address: threading.Event().wait())

    with pytest.raises(ResourceError, match="no Ray cluster answers") as caught:
        asyncio.run(cluster.join("10.0.0.1:6379", 0.2))
    assert caught.value.why == "no answer within 0.2 s"
