"""Where the collectives of a worker's engine listen: on the interface its controller was told of, and no other.

A worker sets the variables before it imports anything that could read them.

Knows: addresses and interfaces of the machine it runs on, and what gloo, NCCL and HCCL read.
Does not know: process groups; the engines make them.
"""

from __future__ import annotations

from ipaddress import ip_address

import psutil


def network_environment(host: str) -> dict[str, str]:
    """Return the variables that keep gloo, NCCL and HCCL to the interface of an address of this machine.

    Left to themselves they listen where anybody may connect, and NCCL answers anybody who asks how it is (RAS). HCCL
    finds its own way within a machine: a loopback address leaves it alone. One of no interface here keeps nothing.
    """
    addresses = psutil.net_if_addrs()
    loopback = ip_address(host).is_loopback
    wanted = ("127.0.0.1", "::1") if loopback else (host,)
    name = next((name for name, own in addresses.items() if any(one.address in wanted for one in own)), None)
    libraries = ("GLOO", "NCCL") if loopback else ("GLOO", "NCCL", "HCCL")
    return {"NCCL_RAS_ENABLE": "0"} | {f"{library}_SOCKET_IFNAME": name for library in libraries if name}
