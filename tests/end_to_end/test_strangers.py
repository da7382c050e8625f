"""What another user of this machine reaches of a run that goes on: nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.benches.strangers import as_nobody, can_be_nobody, entered, named_sockets, reached

from areal_conformance.benches.process import listening

from .live_run import command, live_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_be_nobody(), reason="only root can become another user")]


def test_nobody_else_on_this_machine_connects_to_any_process_of_a_run(tmp_path: Path, model: Path) -> None:
    """Two trainer ranks, a generator and rewards: no port takes a connection, and no socket with a name is entered."""
    folder = tmp_path / "run"
    settings = ("steps=1000", "rollout.prompts_per_step=4", "rollout.group_size=4", "evaluation.every_steps=0")
    with live_run(command(folder, model, *settings, "actor.backend=fsdp:d2"), folder) as run:
        run.wait_for_step(1)
        family = [run.process.pid, *(process.pid for process in run.processes if process.is_running())]
        ports = sorted({place for pid in family for place in listening(pid)})
        sockets = sorted(named_sockets(family))
        mine, theirs = entered(sockets), as_nobody(lambda: [*reached(ports), *entered(sockets)])
        run.send(signal.SIGINT)
        run.wait()

    assert {address for address, _ in ports} == {"127.0.0.1"}, "gloo's, which are shut"
    assert len(mine) >= 6, "three workers, each with calls and signs of life"
    assert theirs == []
