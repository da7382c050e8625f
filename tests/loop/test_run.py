"""When a run starts again by itself, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import NoReplica
from areal_core.contract.scheduler import WorkerState, WorkerStatus
from areal_core.loop.checkpoint import BEGINNING, Progress
from areal_core.loop.restarts import Site
from areal_core.loop.run import Run
from areal_core.observe.events import EventLog
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_core.rollout.tasks import TaskSource
from areal_core.testing.engines import ScriptedWorker
from areal_core.worker.supervise import Supervisor
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model


class OneActor:
    """A scheduler with one training worker, and what became of it."""

    def __init__(self, state: WorkerState) -> None:
        self._status = WorkerStatus(id="actor/0", role="actor", rank=0, state=state, pid=7, exit_code=-9)

    def poll(self, role: str) -> list[WorkerStatus]:
        """Tell of the worker."""
        return [self._status]

    async def submit(self, job: object) -> tuple[ScriptedWorker, ...]:
        """Place nobody."""
        return ()

    async def cancel(self, role: str) -> None:
        """End nobody."""

    async def close(self) -> None:
        """Nothing is open."""


class Notes:
    """A view that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.notes.append(text)

    def step(self, record: Mapping[str, Any]) -> None:
        """Take a step. Any: as in `metrics.jsonl`."""

    def waiting(self, what: str) -> None:
        """Take what is waited for."""


class Ended:
    """A run between its starts: which of them it goes on after."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        model = make_spell_model(folder / "model", seed=1)
        words = [f"model.path={model}", f"out={folder / 'run'}", "actor.backend=reference:d1", *overrides]
        registry = default_registry()
        self.view, self.stop, self.folder = Notes(), asyncio.Event(), folder / "run"
        self.folder.mkdir()
        self._plan = make_plan(load_config(preset_path("spell"), words), registry, {})
        self._run = Run(self._plan, registry, view=self.view, stop=self.stop)

    def goes_on(self, *, num_steps: int = 1, actor: WorkerState = WorkerState.ENDED, fleet: bool = True) -> bool:
        """Say what the run does after a start that made so many steps and ended like this."""
        site = Site(OneActor(actor), self._plan)
        supervisor = Supervisor(site)
        supervisor.watch("actor")
        supervisor.watch_with(lambda: None if fleet else _no_replica())
        return self._run._starts_again(site, supervisor, EventLog(self.folder / "events.jsonl"), 0, num_steps)


def _no_replica() -> None:
    raise NoReplica("the fleet is gone")


def _saved(folder: Path, version: int) -> Path:
    """Make a checkpoint of this version as far as the loop reads it."""
    path = folder / "checkpoints" / f"step-{version:06}"
    path.mkdir(parents=True)
    (path / "loop.json").write_text(f'{{"format": 1, "version": {version}, "tasks": {{}}, "totals": {{}}}}')
    return path


def test_a_run_without_its_trainer_starts_again_so_often(tmp_path: Path) -> None:
    """It says from where, why and how often, on the terminal and in its journal."""
    run = Ended(tmp_path, "scheduler.restarts=2")
    _saved(run.folder, 4)

    assert [run.goes_on() for _ in range(3)] == [True, True, False]
    first, second = read_lines(run.folder / "events.jsonl")
    assert (first["kind"], first["number"], first["version"], first["kept"]) == ("run_restarted", 1, 4, [])
    assert "actor/0" in second["error"] and "SIGKILL" in second["error"]
    assert run.view.notes[1].endswith("was killed by SIGKILL: starting again from step-000004 in 1 s, restart 2 of 2")


def test_each_start_goes_on_from_the_latest_checkpoint_wherever_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began with a checkpoint of another goes on from its own, once it has some, and from the newest."""
    ended, begun = Ended(tmp_path, "steps=5"), list[tuple[str, int]]()

    async def start_and_train(run: Run, _events: EventLog, checkpoint: Path, progress: Progress) -> int | None:
        begun.append((checkpoint.parents[1].name, progress.version))
        if progress.version == 5:
            return 5
        if len(begun) > 1:
            _saved(ended.folder, progress.version + 1)
        return None

    monkeypatch.setattr(Run, "_start_and_train", start_and_train)
    monkeypatch.setattr(ended._run, "_pause_s", 0.0)
    asyncio.run(ended._run.execute(start=_saved(tmp_path / "other", 3)))

    assert begun == [("other", 3), ("other", 3), ("run", 4), ("run", 5)]


def test_a_start_that_made_no_step_gets_no_other_after_it(tmp_path: Path) -> None:
    """What dies at once, again and again, is not worth waiting for; a first start may have been unlucky."""
    run = Ended(tmp_path, "scheduler.restarts=9")

    assert [run.goes_on(num_steps=0), run.goes_on(num_steps=0)] == [True, False]
    assert "from its beginning" in run.view.notes[0]


@pytest.mark.parametrize("reason", ["none wanted", "asked to stop", "the trainer lives"])
def test_a_run_that_ends_for_another_reason_stays_ended(tmp_path: Path, reason: str) -> None:
    """Only the loss of a training worker is worth another start; Ctrl-C ends a run whoever dies meanwhile."""
    run = Ended(tmp_path, f"scheduler.restarts={0 if reason == 'none wanted' else 2}")
    if reason == "asked to stop":
        run.stop.set()
    lives = reason == "the trainer lives"

    assert not run.goes_on(actor=WorkerState.RUNNING if lives else WorkerState.ENDED, fleet=not lives)
    assert run.view.notes == []


def test_the_beginning_is_a_state_to_go_on_from() -> None:
    """Every task is outstanding there, whatever the data set."""
    tasks = TaskSource([{"prompt": "a"}, {"prompt": "b"}], seed=1)
    before = tasks.state()

    tasks.restore(BEGINNING.tasks["tasks"])

    assert tasks.state() == before
