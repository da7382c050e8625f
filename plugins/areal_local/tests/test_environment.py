"""What is in a worker's environment before it imports anything."""

from __future__ import annotations

import socket

from areal_core.contract.scheduler import Job
from areal_local.scheduler.environment import worker_environment

JOB = Job(role="actor", engine_role="train", backend="fsdp", num_workers=2)


def test_gloo_is_kept_to_the_loopback_interface() -> None:
    """Law 11: its listeners are not authenticated, so nobody outside may reach them."""
    interface = worker_environment(JOB, (), {})["GLOO_SOCKET_IFNAME"]

    assert interface.startswith("lo")
    assert interface in {name for _, name in socket.if_nameindex()}


def test_the_interface_asked_for_is_kept() -> None:
    """Servers bind to loopback unless told otherwise."""
    assert worker_environment(JOB, (), {"GLOO_SOCKET_IFNAME": "eth7"})["GLOO_SOCKET_IFNAME"] == "eth7"
