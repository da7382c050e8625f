"""Longest time that steps on a million tokens keep the controller's event loop from anything else, against 20 ms.

The loop of a run with all that is in it (packing, columns of the algorithm, two forward passes, minibatches, the store
of episodes, metrics), over encrypted calls to two training ranks, processes of the local scheduler whose engine does
nothing. Beside it a task sleeps for a millisecond at a time and notes how late it wakes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import frame
import torch
from rich.console import Console

from areal_algorithms.columns import make_columns
from areal_core.algorithms.plan import objective_spec
from areal_core.cli.train import PlainView
from areal_core.config.load import load_config
from areal_core.config.model_folder import load_tokenizer
from areal_core.config.schema import RunConfig
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.scheduler import Job
from areal_core.contract.train import RankContext, TrainSpec
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.learner import Learner
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.step_record import Totals
from areal_core.loop.train_group import TrainGroup
from areal_core.loop.train_loop import Parts, TrainLoop
from areal_core.observe.events import EventLog
from areal_core.observe.metrics import MetricsStream
from areal_core.plugins.episodes import EndedEpisode, Ending, EpisodeStore, Fate
from areal_core.plugins.registry import default_registry
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.stats import RolloutStats
from areal_core.rollout.tasks import Task
from areal_episodes.store import open_store
from areal_local.own_process import as_controller
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_report.watch.judge import make_watch
from areal_tasks.tiny import make_spell_model

ENGINE = Path(__file__).with_name("echo_engine.py")
LIMIT_S, TICK_S = 0.020, 0.001
GROUP_SIZE = 8
KEYS = ("algorithm.proximal=recompute", "algorithm.minibatches=2", "algorithm.behaviour.mode=clamp")


NO_STATS = RolloutStats(
    version=0,
    running=0,
    buffered=0,
    admitted=0,
    consumed=0,
    rejected=0,
    failed=0,
    dropped=0,
    evaluated=0,
    tokens_generated=0,
    reward_sum=0.0,
    episodes_consumed=0,
    max_staleness_seen=0,
)


class Lateness:
    """How late a task wakes that sleeps for a millisecond again and again."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure in the block."""
        task = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - TICK_S)


class Rollouts:
    """The same groups for every step, told to the store as a run tells it; satisfies `train_loop.Batches`."""

    def __init__(self, episodes: Sequence[Episode], store: EpisodeStore, late: Lateness) -> None:
        self._episodes, self._store, self._version, self._late = episodes, store, 0, late
        self.longest_s: list[float] = []
        """Of each step."""

    async def next_batch(self) -> list[EpisodeGroup]:
        """Return all the groups."""
        step, made = self._version + 1, list[EpisodeGroup]()
        for number, first in enumerate(range(0, len(self._episodes), GROUP_SIZE)):
            task = Task(index=self._version * len(self._episodes) + number, task_id=TaskId(f"train/0/{number}"), row={})
            members = self._episodes[first : first + GROUP_SIZE]
            for member, episode in enumerate(members):
                self._store.ended(ended(task, member, episode))
                await asyncio.sleep(0)
            self._store.settled(task.index, task.attempt, Fate.TRAINED, step)
            made.append(
                EpisodeGroup(
                    task=task,
                    episodes=tuple(members),
                    num_generated=0,
                    oldest_versions=(self._version,) * len(members),
                    staleness=(0,) * len(members),
                )
            )
        self._late.longest_s = 0.0
        return made

    def set_version(self, version: int) -> None:
        """Count on."""
        self._version = version
        self.longest_s.append(self._late.longest_s)

    def state(self) -> Mapping[str, Any]:
        """Return where it stands. Any: plain data."""
        return {"version": self._version}

    def stats(self) -> RolloutStats:
        """Return what nobody looks at."""
        return NO_STATS


class NoFleet:
    """Takes weights at once; satisfies `train_loop.Weights`."""

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Have nothing to hold."""
        yield

    async def update(self, version: int) -> WeightUpdate:
        """Send nothing."""
        return WeightUpdate(version=version, num_tensors=0, num_bytes=0, unchanged=0, seconds=0.0, phases={})


def ended(task: Task, member: int, episode: Episode) -> EndedEpisode:
    """Return what the store hears of an episode."""
    return EndedEpisode(
        ending=Ending.FINISHED,
        task_id=task.task_id,
        task_index=task.index,
        attempt=0,
        member=member,
        version=0,
        row=task.row,
        trajectories=episode.trajectories,
        started=0.0,
        seconds=0.0,
    )


def episodes_of(num_tokens: int, length: int) -> list[Episode]:
    """Return episodes of one length, half of each generated, in groups."""
    random, half = torch.Generator().manual_seed(1), length // 2
    mask = torch.arange(length) >= half
    made = []
    for number in range(num_tokens // length):
        logprobs = -torch.rand(length, generator=random)
        trajectory = Trajectory(
            input_ids=torch.randint(3, 31, (length,), generator=random),
            loss_mask=mask,
            logprobs=torch.where(mask, logprobs, 0.0),
            versions=torch.where(mask, 0, -1).to(torch.int32),
            reward=float(number % 3),
            stop_reason=StopReason.STOP,
        )
        name = f"train/0/{number // GROUP_SIZE}"
        made.append(Episode(trajectories=(trajectory,), task_id=TaskId(name), group_id=GroupId(name)))
    return made


async def learner_of(config: RunConfig, scheduler: LocalScheduler) -> Learner:
    """Start two ranks that share a batch."""
    workers = await scheduler.submit(
        Job(role="actor", engine_role="train", backend="echo", num_workers=2, imports=(str(ENGINE),))
    )
    actor = TrainGroup("actor", workers, timeout_s=60.0)
    ranks = [
        RankContext(rank=rank, world_size=len(workers), local_rank=0, device="cpu", init_method="")
        for rank in range(len(workers))
    ]
    await actor.start(TrainSpec(role="actor", model_path=""), ranks, timeout_s=60.0)
    columns = make_columns(config.algorithm, default_registry(), max_new_tokens=1 << 15)
    return Learner(config.algorithm, objective_spec(config.algorithm), actor, columns, ratios=config.episodes.ratios)


async def longest_s(scratch: Path, num_tokens: int, length: int, num_steps: int) -> list[float]:
    """Return, per step, the longest time that nothing else went on."""
    config = load_config(None, [f"steps={num_steps}", f"out={scratch / 'run'}", *KEYS])
    tokenizer = load_tokenizer(make_spell_model(scratch / "model", seed=1))
    folder, late = RunFolder.of(config), Lateness()
    view = PlainView(num_steps, Console(quiet=True))
    async with AsyncExitStack() as stack:
        stack.enter_context(folder.held(resume=False, archive=False))
        events = stack.enter_context(closing(EventLog(folder.events)))
        store = open_store(folder.root, keep=100_000, tokenizer=tokenizer, tell=events.write)
        stack.enter_context(closing(store))
        scheduler = LocalScheduler(LocalConfig(log_dir=str(scratch)))
        stack.push_async_callback(scheduler.close)
        rollouts = Rollouts(episodes_of(num_tokens, length), store, late)
        parts = Parts(
            learner=await learner_of(config, scheduler),
            executor=rollouts,
            meter=FleetMeter(InferencePool([])),
            sync=NoFleet(),
            evaluator=None,
            metrics=stack.enter_context(closing(MetricsStream(folder.metrics, events=events))),
            events=events,
            view=view,
            watch=make_watch({}, events.write, view.note),
            store=store,
        )
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        async with late.measured():
            await TrainLoop(config, folder, parts, asyncio.Event()).run(0, Totals())
    return rollouts.longest_s


def main() -> int:
    """Measure and report."""
    options = frame.parser(__doc__).parse_args()
    num_tokens, length, num_steps = (1 << 16, 1 << 9, 2) if options.quick else (1 << 20, 1 << 11, 9)
    with tempfile.TemporaryDirectory() as scratch, as_controller():
        _, *longest = frame.run(longest_s(Path(scratch), num_tokens, length, num_steps + 1))  # the first one warms up
    result = frame.Result(
        name="long_batch",
        figure=frame.Figure.of(
            longest, LIMIT_S, middle=max
        ),  # never longer is what is asked for: the worst step counts
        what=f"longest stall of the event loop in {num_steps} steps on {num_tokens:,} tokens / {LIMIT_S * 1e3:g} ms",
        details={"milliseconds": [1e3 * each for each in longest], "tokens": num_tokens, "length": length},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
