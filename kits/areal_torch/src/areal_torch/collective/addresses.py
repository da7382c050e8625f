"""Which address of this machine leads to another machine.

Knows: that the kernel picks one.
Does not know: names of hosts. It imports no torch.
"""

from __future__ import annotations

import socket


def local_address(address: str, port: int) -> str:
    """Return this machine's address on the network that leads to `address`; nothing is sent.

    Raises:
        OSError: no network leads there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        return str(probe.getsockname()[0])
