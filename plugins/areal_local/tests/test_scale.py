"""`areal scale`: refusals, and what it prints; the change itself is in the end-to-end tests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from areal_core.cli.main import main
from areal_core.loop.run_folder import RunFolder
from areal_local.scale.requests import Inbox


class Fleet:
    """Is at once what it was asked to be."""

    num_serving, moving = 1, False

    async def resize(self, wanted: int) -> None:
        self.num_serving = wanted


def test_a_folder_without_a_live_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input, with the command that would help."""
    assert main(["scale", str(tmp_path), "2"]) == 2

    told = capsys.readouterr().err
    assert "no run is active" in told and "areal train --resume" in told


def test_less_than_one_replica_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody has to serve."""
    with RunFolder(tmp_path).held(resume=False):
        assert main(["scale", str(tmp_path), "0"]) == 2

    assert "a run cannot have 0 replicas" in capsys.readouterr().err


@pytest.mark.parametrize("waiting", [True, False])
def test_it_tells_what_the_run_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str], waiting: bool) -> None:
    """With --wait it returns when the fleet is what was asked for; either way it leaves no file."""
    folder, ended = RunFolder(tmp_path), threading.Event()

    async def serve() -> None:
        inbox = Inbox(folder.root, Fleet())  # type: ignore[arg-type]
        while not ended.is_set():
            await inbox.look()
            await asyncio.sleep(0.01)

    with folder.held(resume=False):
        run = threading.Thread(target=asyncio.run, args=(serve(),))
        run.start()
        try:
            code = main(["scale", str(tmp_path), "3", *(["--wait"] if waiting else [])])
        finally:
            ended.set()
            run.join()

    said = capsys.readouterr().out
    assert code == 0
    assert "serv" in said
    assert not waiting or "done; 3 serving" in said
    assert list((tmp_path / "scale").glob("*.request*")) == []
