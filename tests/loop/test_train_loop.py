"""The order of one step: what is saved before what may fail, and what is told of odd steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_core.config.load import load_config
from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode
from areal_core.contract.errors import ArealError, RewardFailed, StorageError, TrainError, WeightSyncError
from areal_core.contract.train import TrainReport
from areal_core.fleet.turns import OwnDevices
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.checkpoint import read_progress
from areal_core.loop.learner import Update
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.step_record import Totals
from areal_core.loop.train_loop import Parts, TrainLoop
from areal_core.plugins.extensions import Watch
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.stats import RolloutStats
from areal_core.rollout.tasks import Task
from areal_torch.testing.batches import make_batch, make_episode

REPORT = TrainReport(loss=0.0, grad_norm=1.0, lr=0.1, stepped=True, num_microbatches=1, num_tokens=5, seconds=0.1)
STATS = RolloutStats(
    version=0, running=0, buffered=0, admitted=0, consumed=0, rejected=0, failed=0, dropped=0, evaluated=0,
    tokens_generated=0, reward_sum=0.0, episodes_consumed=0, max_staleness_seen=0,
)  # fmt: skip

CLOCK = dict.fromkeys(("time", "seconds", "wall_s", "eval_s"), 0)


class Everything:
    """Every part of a run at once, so small that only the order of calls is left; `log` has them."""

    role = "actor"

    def __init__(
        self,
        *,
        unchanged: int = 0,
        stepped: Sequence[bool] = (True,),
        failing_evaluation: int = -1,
        failing_batch: int = -1,
        failing_sync: int = -1,
        failing_update: int = -1,
        full_disk: Sequence[int] = (),
        written: bool = True,
        slow_store: bool = False,
    ) -> None:
        self.log: list[str] = []
        self.waits: list[str] = []
        self.events: list[str] = []
        self.records: list[Mapping[str, Any]] = []
        self.version = self.busy_s = self.tokens_generated = self.read_at = 0
        self.metrics: Mapping[str, float] = {}
        self.actor, self.critic = self, None
        self._unchanged, self._stepped, self._failing = unchanged, stepped, failing_evaluation
        self._failing_batch, self._written = failing_batch, written
        self._failing_sync, self._failing_update, self._full_disk = failing_sync, failing_update, full_disk
        self._begun, self._slow_store = -1, slow_store
        self.told: list[tuple[int, int]] = []

    async def next_batch(self) -> list[EpisodeGroup]:
        if self.version == self._failing_batch:
            raise RewardFailed("the reward function raised")
        task = Task(index=self.version, task_id="t", row={})  # type: ignore[arg-type]
        return [
            EpisodeGroup(task=task, episodes=(make_episode(),), num_generated=3, oldest_versions=(0,), staleness=(0,))
        ]

    async def update(self, *args: Any) -> Any:
        """Train, or sync weights: told apart by the number of arguments, as the loop calls them."""
        if self.version == (self._failing_update if len(args) == 2 else self._failing_sync):
            raise WeightSyncError("half of it")
        if len(args) == 2:
            reports = [attrs.evolve(REPORT, stepped=stepped) for stepped in self._stepped]
            return Update(reports=reports, batch=make_batch([(2, 3)]), metrics={})
        return WeightUpdate(
            version=args[0], num_tensors=2, num_bytes=8, unchanged=self._unchanged, seconds=0.0, phases={}
        )

    def set_version(self, version: int) -> None:
        self.version = version

    def stepping(self) -> AbstractAsyncContextManager[None]:
        """Nothing joins meanwhile."""
        return nullcontext()

    async def save_state(self, _path: Path) -> None:
        if self.version in self._full_disk:
            raise StorageError("the state is not written", why="No space left on device")
        self.log.append(f"saved {self.version}")

    async def begin_state(self, path: Path) -> None:
        self.log.append(f"begun {self.version}")
        self._begun = self.version
        (path.parent / "begun").touch()

    async def state_written(self) -> bool:
        return self._written

    async def finish_state(self) -> None:
        self.log.append(f"finished {self._begun}")

    async def save_weights(self, _path: Path) -> None:
        """Nothing to write."""

    async def score(self) -> tuple[dict[str, float], int]:
        self.log.append(f"evaluated {self.version}")
        if self.version == self._failing:
            raise RewardFailed("the reward function raised")
        return {"reward": 0.5}, 0

    async def read(self) -> None:
        """The meter's."""

    def state(self) -> dict[str, Any]:
        return {"version": self.version}

    def stats(self) -> RolloutStats:
        return STATS

    def write(self, *args: Any, **_: Any) -> None:
        """Take an event by its kind, or a step's record."""
        (self.events if isinstance(args[0], str) else self.records).append(args[0])

    def step(self, record: Mapping[str, Any]) -> None:
        self.log.append(f"shown {record['step']}")

    def learned(self, step: int, batch: Batch) -> Future[None]:
        """The store's."""
        self.told.append((step, batch.num_tokens))
        self.kept = Future[None]()
        if not self._slow_store:
            self.kept.set_result(None)
        return self.kept

    def note(self, text: str) -> None:
        """Nobody watches."""

    def waiting(self, what: str) -> None:
        """Keep what is waited for."""
        self.waits.append(what)


def _loop(
    tmp_path: Path, everything: Everything, *overrides: str, stopped: bool = False, watch: Watch | None = None
) -> tuple[TrainLoop, RunFolder]:
    every = dict.fromkeys(attrs.fields_dict(Parts), everything)
    parts = Parts(**{**every, "watch": watch, "turns": OwnDevices()})  # type: ignore[arg-type]
    stop = asyncio.Event()
    if stopped:
        stop.set()
    folder = RunFolder(tmp_path)
    return TrainLoop(load_config(None, ["steps=2", *overrides]), folder, parts, stop), folder


def test_a_failed_last_evaluation_costs_no_training(tmp_path: Path) -> None:
    """Its checkpoint is complete before, and its step is in the metrics."""
    everything = Everything(failing_evaluation=2)
    loop, folder = _loop(tmp_path, everything)

    with pytest.raises(RewardFailed):
        asyncio.run(loop.run(0, Totals()))

    assert everything.log == ["evaluated 0", "shown 1", "saved 2", "evaluated 2"]
    assert [path.name for path in folder.checkpoints()] == ["step-000002"]
    assert [record["step"] for record in everything.records] == [1, 2]


def test_whoever_watches_is_told_what_a_step_waits_for(tmp_path: Path) -> None:
    """From before the first evaluation to the last; a name of each part, in the order of the work."""
    everything = Everything()
    loop, _ = _loop(tmp_path, everything, "steps=1")

    asyncio.run(loop.run(0, Totals()))

    assert everything.waits == [
        "the evaluation before the first step",
        "rollouts",
        "the trainer",
        "the weight update",
        "the evaluation",
    ]


def test_the_store_hears_what_each_step_trained_on(tmp_path: Path) -> None:
    """The batch with its columns, once a step."""
    everything = Everything()
    loop, _ = _loop(tmp_path, everything)

    asyncio.run(loop.run(0, Totals()))

    assert everything.told == [(1, 5), (2, 5)]


def test_a_checkpoint_waits_for_what_the_store_was_told_of_its_step(tmp_path: Path) -> None:
    """What is trained and what is recorded as trained are one fact, whenever the controller is killed."""

    async def body() -> None:
        everything = Everything(slow_store=True)
        loop, folder = _loop(tmp_path, everything, "evaluation.before=false", "checkpoint.every_steps=1", "steps=2")
        running = asyncio.ensure_future(loop.run(0, Totals()))
        for step in (1, 2):
            for _ in range(100):  # more turns of the event loop than a step takes
                await asyncio.sleep(0)
            assert len(everything.told) == step
            assert len(folder.checkpoints()) == step - 1 and len(everything.records) == step - 1
            everything.kept.set_result(None)
        await running

    asyncio.run(body())


def test_a_checkpoint_has_the_record_of_its_step(tmp_path: Path) -> None:
    """A controller may die before it writes it: here when the fleet takes no weights."""
    settings = ("steps=3", "evaluation.before=false", "checkpoint.every_steps=1")
    everything = Everything(failing_sync=2)
    loop, folder = _loop(tmp_path, everything, *settings)

    with pytest.raises(WeightSyncError):
        asyncio.run(loop.run(0, Totals()))

    latest = folder.latest()
    assert latest is not None and latest.name == "step-000003"
    record = read_progress(latest).record
    assert (record["step"], record["reward"], record["sync_tensors"]) == (3, 1.0, 0)
    assert [line["step"] for line in everything.records] == [1, 2]
    (path,) = [path for path in folder.checkpoints() if path.name == "step-000002"]
    assert {**read_progress(path).record, **CLOCK} == {**json.loads(json.dumps(everything.records[1])), **CLOCK}


def test_a_run_stopped_before_its_first_step_evaluates_and_saves_nothing(tmp_path: Path) -> None:
    """There is nothing to keep, and a person is waiting."""
    everything = Everything()
    loop, folder = _loop(tmp_path, everything, stopped=True)

    assert asyncio.run(loop.run(0, Totals())) == 0
    assert everything.log == []
    assert folder.latest() is None


@pytest.mark.parametrize(
    ("everything", "told"),
    [
        (Everything(), []),
        (Everything(stepped=(False,), unchanged=2), ["step_skipped"]),
        (Everything(unchanged=2), ["weights_unchanged"]),
        (Everything(stepped=(False, True), unchanged=2), ["step_skipped", "weights_unchanged"]),
    ],
)
def test_steps_that_change_nothing_are_told(tmp_path: Path, everything: Everything, told: list[str]) -> None:
    """A skipped step is one reason; weights that stay the same without one are another."""
    loop, _ = _loop(tmp_path, everything, "steps=1", "evaluation.before=false")

    asyncio.run(loop.run(0, Totals()))

    odd = [kind for kind in everything.events if kind in ("step_skipped", "weights_unchanged")]
    assert odd == told


def test_a_resumed_run_adds_to_its_totals(tmp_path: Path) -> None:
    """Episodes and updates of both runs; the loop's own clock starts at the earlier seconds."""
    everything = Everything()
    everything.version = 1
    loop, _ = _loop(tmp_path, everything)

    asyncio.run(loop.run(1, Totals(seconds=100.0, episodes_trained=128, weight_updates=1, tokens_trained=10)))

    (record,) = everything.records
    assert (record["step"], record["tokens_trained"]) == (2, 13)
    assert record["wall_s"] >= 100.0


@pytest.mark.parametrize("resumed", range(5))
def test_what_is_due_is_told_by_the_version_wherever_a_run_goes_on(tmp_path: Path, resumed: int) -> None:
    """A resume evaluates and saves the versions that the run would have without it, no others."""
    everything = Everything()
    everything.version = resumed
    every = ("evaluation.before=false", "evaluation.every_steps=2", "checkpoint.every_steps=3")
    loop, _ = _loop(tmp_path, everything, "steps=7", *every)

    asyncio.run(loop.run(resumed, Totals()))

    assert [entry for entry in everything.log if "evaluated" in entry] == [
        f"evaluated {version}" for version in (2, 4, 6, 7) if version > resumed
    ]
    assert [entry for entry in everything.log if "saved" in entry] == [
        f"saved {version}" for version in (3, 6, 7) if version > resumed
    ]


BACKGROUND = ("checkpoint.every_steps=1", "checkpoint.background=true", "evaluation.before=false", "steps=3")


@pytest.mark.parametrize("written", [True, False])
def test_a_checkpoint_begun_is_finished_a_step_later_and_the_last_one_at_once(tmp_path: Path, written: bool) -> None:
    """At the first step after which engines have written it, at the latest before the next one begins."""
    everything = Everything(written=written)
    loop, folder = _loop(tmp_path, everything, *BACKGROUND)

    assert asyncio.run(loop.run(0, Totals())) == 3

    saving = [entry for entry in everything.log if not entry.startswith("shown")]
    assert saving == ["begun 1", "finished 1", "begun 2", "finished 2", "saved 3", "evaluated 3"]
    assert everything.log.index("shown 1") < everything.log.index("finished 1")
    assert [path.name for path in folder.checkpoints()] == ["step-000002", "step-000003"]
    assert everything.events.count("checkpoint") == 3


def test_engines_that_are_not_done_are_not_waited_for(tmp_path: Path) -> None:
    """Steps between two checkpoints go on; the first is finished when the second is due."""
    everything = Everything(written=False)
    loop, _ = _loop(tmp_path, everything, *BACKGROUND, "checkpoint.every_steps=2", "steps=5")

    asyncio.run(loop.run(0, Totals()))

    saving = [entry for entry in everything.log if not entry.startswith("evaluated")]
    first, second = ["begun 2", "shown 2", "shown 3", "finished 2"], ["begun 4", "shown 4", "finished 4"]
    assert saving == ["shown 1", *first, *second, "saved 5", "shown 5"]


def test_a_checkpoint_begun_is_kept_when_something_else_fails(tmp_path: Path) -> None:
    """The trainers are well; what they have written is worth keeping."""
    everything = Everything(failing_batch=1, written=False)
    loop, folder = _loop(tmp_path, everything, *BACKGROUND)

    with pytest.raises(RewardFailed):
        asyncio.run(loop.run(0, Totals()))

    assert everything.log[-1] == "finished 1"
    assert [path.name for path in folder.checkpoints()] == ["step-000001"]


@pytest.mark.parametrize(("failing", "saved"), [({"failing_batch": 2}, 2), ({"failing_sync": 2}, 3)])
def test_what_is_trained_is_saved_before_an_error_ends_the_run(
    tmp_path: Path, failing: dict[str, int], saved: int
) -> None:
    """A rollout that failed costs no step, and neither does a fleet that could not take the new weights."""
    loop, folder = _loop(tmp_path, Everything(**failing), "steps=9", "evaluation.before=false")  # type: ignore[arg-type]

    with pytest.raises((RewardFailed, WeightSyncError)):
        asyncio.run(loop.run(0, Totals()))

    latest = folder.latest()
    assert latest is not None and latest.name == f"step-{saved:06d}"
    progress = read_progress(latest)
    assert (progress.version, progress.tasks["version"], progress.totals["weight_updates"]) == (saved, saved, saved)


@pytest.mark.parametrize(("every", "saved"), [(1, ["step-000001", "step-000002"]), (2, ["step-000002"]), (5, [])])
def test_weights_an_update_may_have_half_changed_are_not_saved(tmp_path: Path, every: int, saved: list[str]) -> None:
    """The checkpoint before stays the newest one, however old it is: groups and weights are one fact."""
    settings = ("steps=9", "evaluation.before=false", f"checkpoint.every_steps={every}")
    loop, folder = _loop(tmp_path, Everything(failing_update=2), *settings)

    with pytest.raises(WeightSyncError):
        asyncio.run(loop.run(0, Totals()))

    assert [path.name for path in folder.checkpoints()] == saved


def test_a_checkpoint_the_disk_refused_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    """One failed periodic checkpoint is no reason to end a run."""
    everything = Everything(full_disk=(3,))
    settings = ("steps=8", "evaluation.before=false", "checkpoint.every_steps=3", "checkpoint.keep=9")
    loop, folder = _loop(tmp_path, everything, *settings)

    assert asyncio.run(loop.run(0, Totals())) == 8

    assert [path.name for path in folder.checkpoints()] == [f"step-{step:06d}" for step in (6, 8)]
    assert everything.events.count("checkpoint_refused") == 1


def test_a_stop_finishes_the_checkpoint_that_was_begun(tmp_path: Path) -> None:
    """It is of the version reached: no other is written."""

    class Stopping(Everything):
        def step(self, record: Mapping[str, Any]) -> None:
            super().step(record)
            loop._stop.set()

    everything = Stopping(written=False)
    loop, folder = _loop(tmp_path, everything, *BACKGROUND)

    assert asyncio.run(loop.run(0, Totals())) == 1
    assert everything.log == ["begun 1", "shown 1", "finished 1"]
    assert [path.name for path in folder.checkpoints()] == ["step-000001"]


def test_a_cancelled_run_leaves_nothing_of_the_checkpoint_that_was_begun(tmp_path: Path) -> None:
    """Whoever cancels waits for nobody; the checkpoint before is the newest one."""

    class Hanging(Everything):
        async def next_batch(self) -> list[EpisodeGroup]:
            if self._begun == 2:
                raise asyncio.CancelledError
            return await super().next_batch()

    everything = Hanging(written=False)
    loop, folder = _loop(tmp_path, everything, *BACKGROUND)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(loop.run(0, Totals()))

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert folder.latest() == tmp_path / "checkpoints" / "step-000001"


def test_a_watch_adds_to_the_record_and_ends_the_run_with_its_state_saved(tmp_path: Path) -> None:
    """The step that was too much is in the metrics and shown; what it trained is in a checkpoint."""
    everything = Everything()

    def watch(record: dict[str, Any], groups: Sequence[Sequence[Episode]]) -> ArealError | None:
        record["episodes seen"] = sum(len(group) for group in groups)
        return TrainError("enough") if record["step"] == 2 else None

    loop, folder = _loop(tmp_path, everything, "steps=9", "evaluation.before=false", watch=watch)

    with pytest.raises(TrainError, match="enough"):
        asyncio.run(loop.run(0, Totals()))

    assert [record["episodes seen"] for record in everything.records] == [1, 1]
    assert [entry for entry in everything.log if entry.startswith("shown")] == ["shown 1", "shown 2"]
    assert everything.log[-1] == "saved 2" and folder.latest() is not None
