"""How long connections wait for a peer that acknowledges nothing."""

from __future__ import annotations

import socket
import sys

import pytest

from areal_torch.collective.patience import give_up_after

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is told")


def test_connections_to_a_peer_are_bounded_and_no_others() -> None:
    """By address and port; also those that write the address as IPv6 does, as torch's do."""
    with socket.create_server(("127.0.0.1", 0)) as peer, socket.create_server(("127.0.0.1", 0)) as other:
        port = peer.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as mapped,
            socket.create_connection(other.getsockname()) as elsewhere,
        ):
            mapped.connect(("::ffff:127.0.0.1", port))
            give_up_after(1.5, "127.0.0.1", port)
            found = [
                line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for line in (plain, mapped, elsewhere)
            ]

    assert found == [1500, 1500, 0]
