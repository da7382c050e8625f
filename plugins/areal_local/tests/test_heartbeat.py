"""Silence is counted in looks, not in wall-clock time."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from areal_core.worker.rendezvous import free_port
from areal_local.scheduler.channel import KeyPair, connected, doorkeeper, listening
from areal_local.scheduler.heartbeat import Pulse, start_echo

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("looks", "silent_s"), [([0.0], 0.0), ([0.0, 0.1, 0.2], 0.2), ([0.0, 100.0], 0.25), ([0.0, 100.0, 100.1], 0.35)]
)
def test_time_the_controller_did_not_look_is_not_held_against_the_worker(looks: list[float], silent_s: float) -> None:
    """Each look adds at most the largest gap, however late it comes."""

    async def run() -> float:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        nobody = connected(context, KeyPair.generate(), KeyPair.generate().public, HOST, free_port())
        pulse = Pulse(nobody, max_gap_s=0.25)
        for now in looks:
            pulse.beat(now)
        pulse.close()
        context.destroy(linger=0)
        return pulse.silent_s

    assert asyncio.run(run()) == pytest.approx(silent_s)


def test_an_echo_ends_the_silence_and_stops_with_its_context() -> None:
    """A worker that answers is heard; ending its context ends the echo's thread."""

    async def run() -> tuple[bool, bool]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        worker: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        client, server = KeyPair.generate(), KeyPair.generate()
        keeper = doorkeeper(worker, client.public)
        socket, port = listening(worker, server, HOST)
        thread = start_echo(socket)
        pulse = Pulse(connected(context, client, server.public, HOST, port), max_gap_s=0.25)
        heard = await pulse.heard(within_s=10)
        pulse.close()
        context.destroy(linger=0)
        keeper.stop()
        worker.term()
        thread.join(10)
        return heard, thread.is_alive()

    assert asyncio.run(run()) == (True, False)
