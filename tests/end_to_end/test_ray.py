"""Runs on a Ray cluster: one of their own, and one whose machines are network namespaces and can be lost."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.benches.network import Network, Unavailable

from areal_core.observe.jsonl import read_lines

from .live_run import PATIENCE_S, command, live_run, trained_tasks
from .ray_hosts import RayHosts, one_machine, ray_hosts
from .unlike_hosts import without_folder

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SMALL = (
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "rollout.backend=reference:d1",
    "actor.backend=reference:d1",
    "evaluation.every_steps=0",
    "scheduler.backend=ray",
)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """A head, and three machines for workers."""
    try:
        with Network(4) as made:
            yield made
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def hosts(network: Network) -> Iterator[RayHosts]:
    """A cluster of them, of one processor each: a worker each."""
    short = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
    with short as folder, ray_hosts(network, Path(folder)) as cluster:
        yield cluster


def test_a_run_starts_a_ray_of_its_own_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    """Where none runs: on loopback, gone with the run."""
    folder = tmp_path / "run"
    words = command(folder, model, *SMALL, "steps=2", "scheduler.options.address=local")
    own = Path(tempfile.mkdtemp(dir="/tmp"))  # short enough for sockets
    with live_run(["env", f"XDG_RUNTIME_DIR={own}", *words], folder) as run:
        code, output = run.wait()

        assert code == 0, output
        assert len(run.steps()) == 2
        assert run.survivors() == []
    own.rmdir()


@pytest.mark.cluster
@pytest.mark.parametrize("lost", ["actor", "rollout"])
def test_a_machine_is_lost_and_every_prompt_is_trained_once(
    tmp_path: Path, model: Path, hosts: RayHosts, lost: str
) -> None:
    """Trainer and replica are on machines of their own; the third takes what the lost one held."""
    folder = tmp_path / "run"
    often = ("steps=6", "checkpoint.every_steps=1", f"scheduler.options.address='{hosts.address}'")
    with live_run([*hosts.inside(0), *command(folder, model, *SMALL, *often)], folder) as run:
        run.patience_s = 2 * PATIENCE_S
        run.wait_for_step(2)
        places = {role: _machine(hosts, folder, role) for role in ("actor", "rollout")}
        hosts.lose(places[lost])
        code, output = run.wait()

        assert code == 0, output
        assert places["actor"] != places["rollout"] and 0 not in places.values()
        tasks = trained_tasks(folder, 6)
        assert len(tasks) == len(set(tasks)) == 6 * 4
        summary = run.summary()
        assert (summary["prompts_lost"], summary["prompts_twice"]) == (0, 0)
        (travel, *_) = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == "weights_travel"]
        assert travel["transport"] == "collective", travel


def _machine(hosts: RayHosts, folder: Path, role: str, rank: int = 0) -> int:
    """Return where a worker of a role is, which wrote its process id into its log."""
    (*_, pid) = re.findall(r"ready, process (\d+)", (folder / f"logs/{role}-{rank}.log").read_text())
    return hosts.of(int(pid))


@pytest.mark.cluster
def test_both_sides_take_turns_on_two_machines(tmp_path: Path, model: Path, network: Network) -> None:
    """A rank and a replica on each, nobody elsewhere; weights go from one machine to the other through the run folder.

    No machine has what another one holds to be temporary.
    """
    folder = tmp_path / "run"
    wide = ("actor.backend=fsdp:d2", "rollout.backend=reference:d2", "actor.placement.num_hosts=2", "placement=shared")
    short = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    unlike = {number: without_folder(temporary) for number in range(1, 4)}
    with short as kept, ray_hosts(network, Path(kept), num_cpus=2, unlike=unlike) as hosts:
        words = command(folder, model, *SMALL, *wide, "steps=2", f"scheduler.options.address='{hosts.address}'")
        with live_run([*hosts.inside(0), "env", f"TMPDIR={temporary}", *words], folder) as run:
            run.patience_s = 2 * PATIENCE_S
            run.wait_for_step(1)
            trainers = {_machine(hosts, folder, "actor", rank) for rank in (0, 1)}
            replicas = {_machine(hosts, folder, role) for role in ("rollout", "rollout.1")}
            code, output = run.wait()

    assert code == 0, output
    assert len(trainers) == 2 and replicas == trainers
    (travel, *_) = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == "weights_travel"]
    assert travel["transport"] == "disk", travel
    assert list(folder.glob("areal-weights-*")) == []
    tasks = trained_tasks(folder, 2)
    assert len(tasks) == len(set(tasks)) == 2 * 4
    assert {"turn/sleep_s", "turn/onload_s", "turn/offload_s", "turn/wake_s"} <= set(run.steps()[-1])
    assert run.summary()["max_staleness_seen"] == 0


@pytest.mark.cluster
def test_a_job_is_handed_to_a_cluster_and_outlives_its_controller(tmp_path: Path, model: Path) -> None:
    """`areal job submit` follows it to its end; the controller is killed on the way, and the run goes on by itself."""
    folder = tmp_path / "run"
    _, _, _, _, file, *words = [*command(folder, model, *SMALL, "steps=4", "checkpoint.every_steps=1")]
    with one_machine() as (environ, dashboard):
        submit = [sys.executable, "-m", "areal_core.cli.main", "job", "submit", file, *words]
        submit += ["--address", dashboard, "--python", sys.executable]
        with live_run(["env", *environ, *submit], folder) as run:
            run.wait_for_step(2)
            (controller,) = [each for each in psutil.process_iter() if _trains(each, folder)]
            controller.kill()
            code, output = run.wait()

    assert code == 0, output
    assert "killed by signal 9: restart 1 of 3" in output and "succeeded" in output
    tasks = trained_tasks(folder, 4)
    assert len(tasks) == len(set(tasks)) == 4 * 4


def _trains(process: psutil.Process, folder: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "train" in words and f"out={folder}" in words
