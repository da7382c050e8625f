"""A run on two hosts: rank 0 away from the controller, ranks of one role apart, weights from one host to the other.

The hosts are network namespaces, joined by a cable of their own: no packet leaves them, and their loopbacks are
different ones, so whatever assumes that everybody is on one machine fails here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines

from .live_run import PATIENCE_S, LiveRun, command, live_run
from .namespaces import NAMESPACES

pytestmark = pytest.mark.slow

SERVED_PATIENCE_S = 900.0
"""Of a run whose servers take most of a minute to start on a quiet machine."""
HERE, THERE = "10.231.0.1", "10.231.0.2"
FILE, SPANNING = Path(__file__).with_name("namespaces.py"), Path(__file__).with_name("spanning.py")
SMALL = (
    "steps=3",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "evaluation.every_steps=0",
    f"imports=[{FILE}]",
    "scheduler.backend=namespaces",
)


@pytest.fixture(scope="module")
def prefix() -> Iterator[list[str]]:
    """Return what runs a command as the first of two hosts; both are gone afterwards."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` (iproute2) to make network namespaces with")
    names = [f"areal-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (HERE, THERE), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for interface in ("lo", "cable"):
                _ip("-n", name, "link", "set", interface, "up")
        hosts = f"{HERE}={names[0]},{THERE}={names[1]}"
        yield ["ip", "netns", "exec", names[0], "env", f"{NAMESPACES}={hosts}"]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


@pytest.mark.parametrize("transport", ["auto", "disk"])
def test_ranks_on_two_hosts_train_and_weights_cross(
    tmp_path: Path, model: Path, prefix: list[str], transport: str
) -> None:
    """Rank 0 is on the other host: it chooses where the ranks meet, and streams (or stores) what it learned."""
    folder = tmp_path / "run"
    place = f"actor.placement={{num_hosts: 2, hosts: ['{THERE}', '{HERE}']}}"
    words = command(folder, model, *SMALL, "actor.backend=fsdp:d2", place, f"weight_sync.transport={transport}")
    with live_run([*prefix, *words], folder) as run:
        run.wait_for_step(1)
        apart = {role: _network(run.worker(role).pid) for role in ("actor", "rollout")}
        code, output = run.wait()

        assert code == 0, output
        assert apart["actor"] != apart["rollout"], "rank 0 and the replica are in one namespace"
        assert (len(run.steps()), run.summary()["weight_updates"]) == (3, 3)
        (travel,) = _told(run, "weights_travel")
        assert travel["transport"] == {"auto": "collective"}.get(transport, transport)
        assert travel["why"] == f"workers are on {HERE}, {THERE}"
        way = f"weights travel over gloo, from each to the next: the sender at {THERE} -> rollout/0 at {HERE}"
        assert (way in (folder / "logs/actor-0.log").read_text()) == (transport == "auto")
        assert run.survivors() == []


def test_a_replica_over_two_hosts_learns_and_is_replaced_as_a_whole(
    tmp_path: Path, model: Path, prefix: list[str]
) -> None:
    """Its ranks are one on each host; weights reach both. When the follower is killed, another replica takes over."""
    folder = tmp_path / "run"
    place = f"rollout.placement={{num_hosts: 2, hosts: ['{THERE}', '{HERE}']}}"
    wide = ("rollout.backend=spanning:t2", place, "actor.backend=fsdp:d1")
    few = ("steps=4", "rollout.prompts_per_step=2", "rollout.group_size=2", SMALL[3], SMALL[5])
    words = command(folder, model, *few, f"imports=[{FILE},{SPANNING}]", *wide)
    with live_run([*prefix, *words], folder) as run:
        run.patience_s = 2 * PATIENCE_S  # every token asks the other host for its part of every layer
        run.wait_for_step(2)
        follower, leader = run.worker("rollout", 1), run.worker("rollout")
        assert _network(follower.pid) != _network(leader.pid)
        follower.kill()
        run.wait_for_event("replica_joined")
        new = [run.worker("rollout.1", rank) for rank in (0, 1)]
        code, output = run.wait()

        assert code == 0, output
        assert len({_network(process.pid) if process.is_running() else process.pid for process in new}) == 2
        assert not leader.is_running(), "what is left of a replica was not ended"
        assert (len(run.steps()), run.summary()["weight_updates"]) == (4, 4)
        (lost,) = _told(run, "replica_lost")
        assert (lost["worker"], lost["replaced"]) == ("rollout/0", True)
        assert "worker rollout/1 (rank 1" in str(lost["error"])
        (travel,) = _told(run, "weights_travel")
        assert (travel["transport"], travel["why"]) == ("collective", f"workers are on {HERE}, {THERE}")
        assert run.survivors() == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("vllm:t2", marks=pytest.mark.vllm),
        pytest.param("vllm:p2", marks=pytest.mark.vllm),
        pytest.param("sglang:t2", marks=pytest.mark.sglang),
    ],
)
def test_a_server_over_two_hosts_is_replaced_when_a_part_of_it_dies(
    tmp_path: Path, model: Path, prefix: list[str], backend: str
) -> None:
    """The ranks of a real server are on two hosts and take every update; its follower is killed, not the worker."""
    folder = tmp_path / "run"
    place = f"rollout.placement={{num_hosts: 2, hosts: ['{THERE}', '{HERE}']}}"
    wide = (f"rollout.backend={backend}", "rollout.options.kv_cache_gib=0.25", place, "actor.backend=fsdp:d1")
    steps = 60  # more than pass while the server is looked for
    words = command(folder, model, *SMALL[1:], f"steps={steps}", *wide, "evaluation.before=false")
    with live_run([*prefix, *words], folder) as run:
        run.patience_s = SERVED_PATIENCE_S
        run.wait_for_step(2)
        follower = run.worker("rollout", 1)
        server = [process for process in follower.children(recursive=True) if "--node-rank" in process.cmdline()]
        assert _network(server[-1].pid) != _network(run.worker("rollout").pid)
        server[-1].kill()
        run.wait_for_event("replica_joined")
        code, output = run.wait(SERVED_PATIENCE_S)

        assert code == 0, output
        assert (len(run.steps()), run.summary()["weight_updates"]) == (steps, steps)
        (lost,) = _told(run, "replica_lost")
        assert "rollout/1 lost its part of replica rollout/0" in str(lost["error"])
        assert run.survivors() == []


def test_shared_memory_does_not_reach_another_host(tmp_path: Path, model: Path, prefix: list[str]) -> None:
    """Asked for by name, it is refused once workers have a place; the reason names both hosts."""
    folder = tmp_path / "run"
    place = f"actor.placement.hosts=['{THERE}']"
    words = command(folder, model, *SMALL, "actor.backend=fsdp:d1", place, "weight_sync.transport=shm")
    with live_run([*prefix, *words], folder) as run:
        code, output = run.wait()

        assert code != 0
        assert "weights cannot travel by shm: it stays within one host" in output
        assert f"workers are on {HERE}, {THERE}" in " ".join(output.split())
        assert run.survivors() == []


def test_a_guest_starts_once_its_owner_is_there(tmp_path: Path, model: Path) -> None:
    """On one machine: the fleet and the reference model beside the actor, with memory and a variable of their own."""
    folder = tmp_path / "run"
    beside = "{together_with: {role: actor, share: devices}, memory_gib: 0.01, env: {AREAL_TEST_TOKEN: hunter2}}"
    places = [f"rollout.placement={beside}", f"reference.placement={beside}"]
    words = command(folder, model, *SMALL[:4], "steps=1", *places)
    with live_run(words, folder) as run:
        run.patience_s = 2 * PATIENCE_S  # one role after another
        run.wait_for_event("weights_travel")
        seen = [run.worker(role).environ().get("AREAL_TEST_TOKEN") for role in ("actor", "rollout", "reference")]
        code, output = run.wait()

        assert code == 0, output
        assert seen == [None, "hunter2", "hunter2"]
        assert [event["transport"] for event in _told(run, "weights_travel")] == ["shm"]
        assert "hunter2" not in (folder / "config.yaml").read_text()
        assert run.survivors() == []


def test_the_suite_holds_a_scheduler_of_other_hosts_to_the_contract(prefix: list[str]) -> None:
    """Quick checks of the role, with workers that have other addresses than the controller."""
    ids = (
        *("submit.ranks", "calls.at_once", "cancel.ends", "death.in_flight", "env.reaches", "access.stranger"),
        *("rendezvous.worker", "rendezvous.meets", "place.one_host", "place.spread", "place.named", "place.too_many"),
        *("memory.impossible", "refuse.image", "refuse.together_host"),
    )
    words = ["areal_core.cli.main", "conformance", "run", "--backend", "namespaces", "--role", "scheduler"]
    asked = [word for name in ids for word in ("--check", f"scheduler.{name}")]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", *words, "--import", str(FILE), *asked],
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert f"{len(ids)} ran: {len(ids)} pass" in done.stdout, done.stdout + done.stderr


def _network(pid: int) -> str:
    """Return which network namespace a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _told(run: LiveRun, kind: str) -> list[dict[str, object]]:
    return [event for event in read_lines(run.folder / "events.jsonl") if event["kind"] == kind]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
