"""Weights over links that delay, lose, part and fall silent: the whole fleet gets them, or an error says who did not.

Controller, trainer and three replicas have a host each; between them is a switch in user space.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.benches.faulty_switch import FaultySwitch
from tests.benches.network import Network, Unavailable
from tests.fleet.weights_program import CALL_S, WAIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
REPLICAS = ("rollout.1/0", "rollout.2/0", "rollout.3/0")
TRAINER, FIRST = 1, 2
"""The trainer's host, and the first replica's."""
FAREWELL_S = 2.0
"""How long who failed waits for what the others say."""
MIDDLE = 1_500_000
"""Bytes of 4 MiB after which a link is cut."""


class Part:
    """A process of the fleet on a host."""

    def __init__(self, network: Network, host: int, *words: str) -> None:
        self._process = subprocess.Popen(
            [*network.inside(host), sys.executable, "-m", "tests.fleet.weights_program", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def hear(self) -> Any:  # Any: json
        """Wait for a line."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, **message: Any) -> Any:  # Any: json
        """Send a line and wait for the answer."""
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        return self.hear()

    def end(self) -> str:
        """Close its input; return what it says last. It ends by itself, within a bound."""
        out, _ = self._process.communicate(timeout=2 * WAIT_S)
        assert self._process.returncode == 0
        return out

    def kill(self) -> None:
        """End it in any case."""
        self._process.kill()
        self._process.communicate()


class Fleet:
    """A controller on host 0, a trainer on host 1, a replica on each other host, and the switch between."""

    def __init__(self, network: Network, switch: FaultySwitch, stack: ExitStack) -> None:
        self.switch = switch
        self._version = 0
        roles = ["trainer", *["replica"] * len(REPLICAS)]
        addresses = network.addresses
        self._workers = [Part(network, h, role, addresses[h]) for h, role in enumerate(roles, TRAINER)]
        for worker in self._workers:
            stack.callback(worker.kill)
            worker.hear()
        self._controller = Part(network, 0, "controller", *addresses)
        stack.callback(self._controller.kill)
        self._controller.hear()

    def update(self, *, anew: bool = False) -> Any:  # Any: json
        """Bring the replicas in service, or with `anew` all there are, to the next version; return what came of it."""
        self._version += 1
        return self._controller.ask(version=self._version, anew=anew)

    def serving(self, *replicas: str, old: bool = False) -> dict[str, list[float]]:
        """Return what these replicas answer if they serve the version of the last update, or the one before."""
        version = self._version - old
        return {name: [version, version] for name in replicas}

    def close(self) -> None:
        """Have every process end by itself, with nothing of a transfer left in it."""
        self._controller.end()
        for worker in self._workers:
            assert json.loads(worker.end()) == {"left": []}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Fleet]:
    """Return the processes of a fleet; at the end nothing of them is left."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(FIRST + len(REPLICAS), wired=False))
            switch = stack.enter_context(FaultySwitch(network))
        except Unavailable as error:
            pytest.skip(str(error))
        made = Fleet(network, switch, stack)
        yield made
        made.close()


@pytest.fixture
def fleet(hosts: Fleet) -> Fleet:
    """Return a fleet all of which serves, whatever became of it in the test before."""
    hosts.switch.mend()
    hosts.switch.set()
    outcome = hosts.update(anew=True)
    assert outcome["serves"] == hosts.serving(*REPLICAS), outcome
    return hosts


@pytest.mark.parametrize("fault", [{"delay_s": 0.05}, {"loss": 0.01}])
def test_links_that_delay_and_lose_cost_time_only(fleet: Fleet, fault: dict[str, float]) -> None:
    """With 50 ms more on every way, or one frame in a hundred lost, every replica gets every byte."""
    fleet.switch.set(**fault)

    outcome = fleet.update()

    assert "error" not in outcome, outcome
    assert outcome["serves"] == fleet.serving(*REPLICAS)


def test_a_link_cut_in_the_middle_ends_the_update_and_is_named(fleet: Fleet) -> None:
    """Two replicas no longer reach each other, the controller reaches both: all keep the old version, and go on."""
    fleet.switch.cut([(FIRST, FIRST + 1), (FIRST + 1, FIRST)], after_bytes=MIDDLE)
    outcome = fleet.update()

    assert fleet.switch.is_cut()
    assert "WeightSyncError" in outcome["error"]
    told = "(sent|took) nothing for too long|closed the connection"  # the latter where one of the two gave up before
    assert re.search(rf"rollout\.[12]/0 at 10\.232\.0\.[34] ({told})", outcome["error"]), outcome
    assert outcome["seconds"] < 2 * WAIT_S + FAREWELL_S
    assert outcome["serves"] == fleet.serving(*REPLICAS, old=True)
    fleet.switch.mend()
    assert fleet.update()["serves"] == fleet.serving(*REPLICAS)


def test_a_replica_whose_host_falls_silent_in_the_middle_is_left_out(fleet: Fleet) -> None:
    """Its connections stay open and nothing comes: it is named, and the others serve the new version in time."""
    fleet.switch.cut(_all_links(FIRST + 1), after_bytes=MIDDLE)
    outcome = fleet.update()

    assert fleet.switch.is_cut()
    assert outcome["excluded"] == [REPLICAS[1]], outcome
    assert outcome["serves"] == fleet.serving(REPLICAS[0], REPLICAS[2])
    assert outcome["seconds"] < CALL_S + 2 * WAIT_S


def test_a_trainer_whose_host_falls_silent_in_the_middle_is_named(fleet: Fleet) -> None:
    """Nothing more comes: the update ends with an error about the trainer, and every replica keeps the old version."""
    fleet.switch.cut([(TRAINER, FIRST), *_all_links(TRAINER)], after_bytes=MIDDLE)
    outcome = fleet.update()

    assert fleet.switch.is_cut()
    assert "actor/0 did not answer" in outcome["error"]
    assert outcome["serves"] == fleet.serving(*REPLICAS, old=True)
    assert outcome["seconds"] < CALL_S + 2 * WAIT_S


def _all_links(host: int) -> list[tuple[int, int]]:
    """Return every link of a host, that from the one before in the chain first."""
    others = sorted(set(range(FIRST + len(REPLICAS))) - {host}, key=lambda other: other != host - 1)
    return [link for other in others for link in ((other, host), (host, other))]
