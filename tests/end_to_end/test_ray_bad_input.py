"""What may be wrong with a Ray cluster: told with the host it is wrong on and what to do, and nothing is left behind.

Most of it is provoked on one cluster whose machines are network namespaces, each unlike the others in one way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from tests.benches.network import Network, Unavailable

from .live_run import command, live_run
from .ray_hosts import RayHosts, one_machine, ray_hosts
from .unlike_hosts import another_version, with_clock, without_folder, without_package

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

HEAD, ALIKE, OLDER, BARE, UNEQUIPPED, AHEAD = range(6)
"""Machines: of the controller, as it should be, with another areal-ray, without it, without an environment, of another
clock."""
AHEAD_S = 3600.0
SMALL = (
    "steps=1",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "rollout.backend=reference:d1",
    "actor.backend=reference:d1",
    "evaluation.every_steps=0",
    "evaluation.before=false",
    "scheduler.backend=ray",
)
_HELD = """
import json, ray
from ray._private import state
from ray.util.placement_group import placement_group_table
ray.init(address={address!r}, log_to_driver=False)
groups = [group["placement_group_id"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
actors = [actor["ActorID"] for actor in state.actors().values() if actor["State"] != "DEAD"]
print(json.dumps([groups, actors]))
"""


@frozen
class Unlike:
    """The cluster, and an environment that one machine lacks."""

    hosts: RayHosts
    environment: Path

    def at(self, number: int) -> str:
        """Return the address of a machine."""
        return self.hosts.network.addresses[number]

    def run(self, folder: Path, model: Path, *words: str) -> tuple[int, str]:
        """Run on it; return the exit code and what was told, in one line."""
        given = [*SMALL, f"scheduler.options.address='{self.hosts.address}'", *words]
        return _ended([*self.hosts.inside(HEAD), *command(folder, model, *given)], folder)

    def held(self) -> list[list[str]]:
        """Return the placement groups and the actors there are."""
        ask = [*self.hosts.inside(HEAD), sys.executable, "-c", _HELD.format(address=self.hosts.address)]
        done = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=120)
        found: list[list[str]] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def unlike() -> Iterator[Unlike]:
    """Six machines, of one processor each but the head, on which no worker has room."""
    try:
        with (
            Network(6) as network,
            tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short,
        ):
            folder = Path(short)
            environment = folder / "envs"
            (environment / "bin").mkdir(parents=True)
            (environment / "bin" / "python").symlink_to(sys.executable)
            words = {
                OLDER: another_version(folder / "older", "areal-ray", "0.0.1"),
                BARE: without_package(folder / "bare", "areal_ray"),
                UNEQUIPPED: without_folder(environment),
                AHEAD: with_clock(folder / "ahead", AHEAD_S),
            }
            with ray_hosts(network, folder, unlike=words) as hosts:
                yield Unlike(hosts, environment)
    except Unavailable as why:
        pytest.skip(str(why))


def _ended(words: list[str], folder: Path) -> tuple[int, str]:
    """Return the exit code of a run and what it told, in one line; it left no process."""
    with live_run(words, folder) as run:
        code, output = run.wait()
        assert run.survivors() == []
    return code, " ".join(output.split())


def _place(role: str, unlike: Unlike, number: int) -> str:
    return f"{role}.placement.hosts=['{unlike.at(number)}']"


def test_a_host_with_another_version_of_areal_is_named(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """With both versions; the other role is on a machine that can take part, and is let go."""
    places = (_place("actor", unlike, OLDER), _place("rollout", unlike, ALIKE))
    code, output = unlike.run(tmp_path / "run", model, *places)

    assert code != 0
    assert "worker actor/0 cannot serve this run" in output
    assert f"({unlike.at(OLDER)}) has areal-ray 0.0.1, the controller areal-ray" in output
    assert "install the controller's versions there" in output
    assert unlike.held() == [[], []]


def test_a_host_without_areal_is_named(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """A machine of the cluster on which nobody has installed it."""
    code, output = unlike.run(tmp_path / "run", model, _place("actor", unlike, BARE), _place("rollout", unlike, ALIKE))

    assert code != 0
    assert f"worker actor/0 cannot be started on host {unlike.at(BARE)}" in output
    assert "No module named 'areal_ray'" in output
    assert "install areal-ray, in the version of the controller" in output
    assert unlike.held() == [[], []]


def test_a_host_without_an_environment_is_named(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """Which the controller's own machine has."""
    python = unlike.environment / "bin" / "python"
    places = (_place("rollout", unlike, UNEQUIPPED), _place("actor", unlike, ALIKE))
    code, output = unlike.run(tmp_path / "run", model, f"rollout.python={python}", *places)

    assert code != 0
    assert f"there is not an interpreter '{python}' for role 'rollout'" in output
    assert f"({unlike.at(UNEQUIPPED)})" in output
    assert unlike.held() == [[], []]


def test_an_environment_that_is_there_is_used(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """On the machine beside the one that lacks it: what is told there is true."""
    words = (f"rollout.python={unlike.environment}/bin/python", _place("rollout", unlike, ALIKE))
    _, output = unlike.run(tmp_path / "run", model, *words, _place("actor", unlike, AHEAD))

    assert "there is not an interpreter" not in output


def test_another_clock_decides_nothing_and_is_told(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """A machine whose time of day is an hour ahead, and whose monotonic clock runs for days more, does its work."""
    folder = tmp_path / "run"
    places = (_place("actor", unlike, AHEAD), _place("rollout", unlike, ALIKE))

    code, output = unlike.run(folder, model, "steps=2", *places)

    assert code == 0, output
    assert f"the clock of host {unlike.at(AHEAD)} is +3600 s from the controller's" in output
    assert "run NTP on all machines" in output
    assert f"the clock of host {unlike.at(ALIKE)}" not in output
    assert unlike.held() == [[], []]


def test_what_no_machine_has_is_refused_with_what_there_is(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """Who asked for how much, and what each machine has."""
    code, output = unlike.run(tmp_path / "run", model, "actor.backend=fsdp:d7")

    assert code != 0
    assert "the Ray cluster has no room for role 'actor'" in output
    assert "why: 7 x [CPU 1] asked for; there is" in output
    assert all(f"({unlike.at(number)}) with CPU 1" in output for number in range(1, 6))
    assert "no machine there could hold it" in output and "ray status" in output
    assert unlike.held() == [[], []]


def test_what_others_hold_is_told_once_it_did_not_come_free(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """The actor has the processor that the fleet is to have."""
    places = (_place("actor", unlike, ALIKE), _place("rollout", unlike, ALIKE), "scheduler.options.room_timeout_s=1")
    code, output = unlike.run(tmp_path / "run", model, *places)

    assert code != 0
    assert "the Ray cluster has no room for role" in output
    there = output[output.index("there is") : output.index("nothing became free")]
    assert unlike.at(ALIKE) in there and unlike.at(AHEAD) not in there
    assert "nothing became free within 1 s; free now: CPU 4, memory" in output
    assert "this run holds: actor 1 x [CPU 1]" in output or "this run holds: rollout 1 x [CPU 1]" in output
    assert unlike.held() == [[], []]


def test_a_token_that_is_not_the_clusters_is_told(tmp_path: Path, model: Path, unlike: Unlike) -> None:
    """Whoever joins needs the one it was started with."""
    given = [*SMALL, f"scheduler.options.address='{unlike.hosts.address}'"]
    inside = [*unlike.hosts.inside(HEAD), "env", "RAY_AUTH_TOKEN=another"]
    code, output = _ended([*inside, *command(tmp_path / "run", model, *given)], tmp_path / "run")

    assert code != 0
    assert f"no Ray cluster answers at '{unlike.hosts.address}'" in output
    assert "no right token" in output and "RAY_AUTH_TOKEN" in output
    assert unlike.held() == [[], []]


@pytest.mark.parametrize("ray, python", [("2.59.0", ""), ("", "3.12.1")])
def test_another_version_than_the_clusters_is_told(tmp_path: Path, model: Path, ray: str, python: str) -> None:
    """Of Ray or of Python: which one it has, which one is here."""
    import ray as ours

    here = ours.__version__, ".".join(map(str, sys.version_info[:3]))
    there = ray or here[0], python or here[1]
    with one_machine(says=there) as (environ, _):
        code, output = _ended(["env", *environ, *command(tmp_path / "run", model, *SMALL)], tmp_path / "run")

    assert code != 0
    assert f"Ray: {there[0]}" in output and f"Python: {there[1]}" in output
    assert f"Ray: {here[0]}" in output and f"Python: {here[1]}" in output
    assert "install the same versions of Ray and Python here as there" in output
