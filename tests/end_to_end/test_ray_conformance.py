"""The scheduler `ray` against its whole contract: on one node, on three raylets, on hosts with networks apart.

    python -m pytest -m cluster tests/end_to_end/test_ray_conformance.py

Knows: what Ray listens on when it joins a cluster, which is the one thing that is known to fail.
Does not know: any check.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.benches.network import Network, Unavailable

from areal_conformance.outcome import Outcome
from areal_conformance.run.record import read_record

from .ray_hosts import one_machine, ray_hosts

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

SUITE = (sys.executable, "-m", "areal_core.cli.main", "conformance", "run")
RAY = ("--backend", "ray", "--role", "scheduler", "--level", "4")
KNOWN = {"scheduler.access.loopback"}
"""Of a process that joins a cluster: Ray has it listen on all interfaces."""
OF_TWO_HOSTS = {
    *("scheduler.place.named", "scheduler.place.spread", "scheduler.rendezvous.meets"),
    "scheduler.together.host",
}
_NO_VARIABLES = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def test_on_one_node(tmp_path: Path) -> None:
    """Which listens on loopback only, so that nothing is known to fail but what takes a second host."""
    with one_machine() as (environ, _):
        given = dict(variable.split("=", 1) for variable in environ)
        judged = _judged([], given, tmp_path, "--ledger", os.devnull, lacking=OF_TWO_HOSTS)
    assert judged == ("failure", set())


def test_on_three_raylets_of_one_machine(tmp_path: Path) -> None:
    """Which the adapter starts, at 127.0.0.2 and on."""
    assert _judged([], {}, tmp_path) == ("partial", KNOWN)


def test_on_hosts_with_addresses_of_their_own(tmp_path: Path) -> None:
    """The controller on the head, workers on three others, whose loopbacks are not its own."""
    with _cluster() as (inside, address):
        assert _judged(inside, {"RAY_ADDRESS": address}, tmp_path) == ("partial", KNOWN)


@contextmanager
def _cluster() -> Iterator[tuple[list[str], str]]:
    short = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
    try:
        with short as folder, Network(4) as network, ray_hosts(network, Path(folder), num_cpus=8) as hosts:
            yield hosts.inside(0), hosts.address
    except Unavailable as why:
        pytest.skip(str(why))


def _judged(
    inside: Sequence[str], given: dict[str, str], folder: Path, *words: str, lacking: Collection[str] = ()
) -> tuple[str, set[str]]:
    """Return the verdict of the whole suite, and which checks fail as is known; say which fail otherwise.

    Args:
        lacking: checks that find too few hosts there.
    """
    command = [*inside, *SUITE, *RAY, "--report", str(folder), *words]
    done = subprocess.run(
        command, env={**_NO_VARIABLES, **given}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    record = read_record(folder / "report.json")
    fine = (Outcome.PASS, Outcome.SKIP, Outcome.KNOWN_FAIL)
    wrong = {row.id: row.message for row in record.checks if row.outcome not in fine}
    assert {name: why for name, why in wrong.items() if name not in lacking} == {}, record.line
    assert {name for name, why in wrong.items() if "2 x [CPU" in why and "on as many machines" in why} == set(lacking)
    return record.verdict, {row.id for row in record.checks if row.outcome is Outcome.KNOWN_FAIL}
