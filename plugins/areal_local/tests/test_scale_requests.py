"""A request for another number of replicas: taken once, answered always, refused with a reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from areal_core.contract.errors import ConfigError, ResourceError, RunFolderError, WorkerTimeout
from areal_core.loop.run_folder import RunFolder
from areal_core.testing.clock import StepClock
from areal_local.scale.requests import PERIOD_S, REQUESTS, Asking, Inbox, State


class Fleet:
    """Goes to the size asked for when the test says so; holds `most` replicas."""

    def __init__(self, most: int = 10) -> None:
        self.num_serving = 1
        self.asked: list[int] = []
        self.moving = False
        self._most = most

    async def resize(self, wanted: int) -> None:
        if wanted > self._most:
            raise ResourceError("2 cuda devices are wanted and 1 are free", why="free: 3", fix="use fewer")
        self.asked.append(wanted)
        self.moving = True

    def arrive(self, at: int) -> None:
        self.num_serving, self.moving = at, False


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run's folder; nobody holds it yet."""
    return RunFolder(tmp_path / "run")


def _inbox(folder: RunFolder, fleet: Fleet) -> Inbox:
    return Inbox(folder.root, fleet)  # type: ignore[arg-type]


def test_a_request_is_accepted_and_then_done(folder: RunFolder) -> None:
    """It is handed to the fleet once, however often the run looks."""
    fleet = Fleet()
    with folder.held(resume=False):
        asking, inbox = Asking(folder, 3), _inbox(folder, fleet)
        asyncio.run(inbox.look())
        accepted = asking.answer(after=None, within_s=1.0)
        asyncio.run(inbox.look())
        with pytest.raises(WorkerTimeout, match="did not answer within"):
            asking.answer(after=State.ACCEPTED, within_s=0.01)
        fleet.arrive(3)
        asyncio.run(inbox.look())
        done = asking.answer(after=State.ACCEPTED, within_s=1.0)
        asking.forget()

    assert fleet.asked == [3]
    assert (accepted.state, accepted.replicas, done.state, done.replicas) == (State.ACCEPTED, 1, State.DONE, 3)
    assert list((folder.root / "scale").iterdir()) == []


def test_a_request_the_machine_cannot_hold_is_refused_as_the_scheduler_says(folder: RunFolder) -> None:
    """What, why and fix arrive whole, as the error they were."""
    with folder.held(resume=False):
        asking = Asking(folder, 3)
        asyncio.run(_inbox(folder, Fleet(most=2)).look())
        answer = asking.answer(after=None, within_s=1.0)

    assert answer.state is State.FAILED
    assert isinstance(answer.error, ResourceError)
    assert (answer.error.what, answer.error.why, answer.error.fix) == (
        "2 cuda devices are wanted and 1 are free",
        "free: 3",
        "use fewer",
    )


def test_a_fleet_that_falls_short_says_so(folder: RunFolder) -> None:
    """Nothing moves any more and the number is another one: that is a failure, not done."""
    fleet = Fleet()
    with folder.held(resume=False):
        asking, inbox = Asking(folder, 3), _inbox(folder, fleet)
        asyncio.run(inbox.look())
        fleet.arrive(2)
        asyncio.run(inbox.look())
        answer = asking.answer(after=State.ACCEPTED, within_s=1.0)

    assert answer.state is State.FAILED
    assert "3 replicas were requested and 2 are serving" in str(answer.error)


def test_a_later_request_takes_over(folder: RunFolder) -> None:
    """The one before is told; the last one decides."""
    fleet = Fleet()
    with folder.held(resume=False):
        first, inbox = Asking(folder, 3), _inbox(folder, fleet)
        asyncio.run(inbox.look())
        second = Asking(folder, 2)
        asyncio.run(inbox.look())
        fleet.arrive(2)
        asyncio.run(inbox.look())

        assert first.answer(after=State.ACCEPTED, within_s=1.0).state is State.SUPERSEDED
        assert second.answer(after=State.ACCEPTED, within_s=1.0).state is State.DONE
    assert fleet.asked == [3, 2]


def test_only_a_live_run_can_be_asked_and_only_for_a_number_it_can_have(folder: RunFolder) -> None:
    """Refused before anything is written."""
    with pytest.raises(RunFolderError, match="no run is active"):
        Asking(folder, 2)
    with folder.held(resume=False), pytest.raises(ConfigError, match="cannot have 0 replicas"):
        Asking(folder, 0)
    with pytest.raises(RunFolderError, match="no run is active"):
        Asking(folder, 2)
    assert not (folder.root / "scale").exists()


def test_a_run_that_ends_leaves_nobody_waiting(folder: RunFolder) -> None:
    """Whoever waits for an answer learns that there will be none."""
    with folder.held(resume=False):
        asking = Asking(folder, 2)

    with pytest.raises(RunFolderError, match="ended before"):
        asking.answer(after=None, within_s=60.0)
    REQUESTS.clear(folder.root)
    assert list((folder.root / "scale").iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"replicas": "3"}', '{"replicas": true}', '{"replicas": -1}'])
def test_a_file_that_is_no_request_is_refused_and_does_no_harm(folder: RunFolder, text: str) -> None:
    """The run goes on, and the file is gone."""
    fleet, path = Fleet(), folder.root / "scale" / "odd.request"
    path.parent.mkdir(parents=True)
    path.write_text(text)

    asyncio.run(_inbox(folder, fleet).look())

    assert fleet.asked == []
    assert not path.exists()
    assert json.loads(path.with_suffix(".answer").read_text())["state"] == "failed"


def test_the_run_looks_once_a_second_until_it_closes(folder: RunFolder) -> None:
    """Closing twice is closing once."""

    async def run() -> list[int]:
        clock, fleet = StepClock(), Fleet()
        inbox = Inbox(folder.root, fleet, clock)  # type: ignore[arg-type]
        inbox.start()
        await clock.settle()
        with folder.held(resume=False):
            Asking(folder, 2)
        await clock.advance(PERIOD_S)
        inbox.check()
        await inbox.close()
        await inbox.close()
        return fleet.asked

    assert asyncio.run(run()) == [2]
