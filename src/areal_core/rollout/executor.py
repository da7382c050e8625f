"""Runs workflows ahead of training, as far as the staleness gate allows, and hands over batches.

Knows: which groups run, which finished, which version is trained on.
Does not know: how an episode is made, how batches are trained on, how weights travel.

Everything happens in one event loop. The executor owns every task it makes: `close` cancels and
awaits them all, and an error in any of them comes out of `next_batch`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve

from areal_core.config.schema import Admission, RolloutConfig, StalenessPolicy
from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.data import Episode
from areal_core.contract.errors import ArealError, DatasetError, EpisodeFailed, RolloutError
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import SamplingParams
from areal_core.contract.workflow import RolloutWorkflow
from areal_core.observe.events import EventSink, ignore_event
from areal_core.plugins.blame import told
from areal_core.plugins.episodes import EpisodeStore, Fate, KeptGroup
from areal_core.plugins.extensions import MakePace, extension
from areal_core.rollout.acceptance import Accept, Acceptance
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner, Prepare, too_many
from areal_core.rollout.groups import EpisodeGroup, kept_group, run_group, stamped
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.staleness import Buffer, DroppingGate, StalenessGate
from areal_core.rollout.stats import Counts, RolloutStats
from areal_core.rollout.tasks import Task, TaskSource

_WINDOW = 10
"""Batches of groups over which the share of failed ones is taken."""
CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits for workflows that were cancelled."""


class RolloutExecutor:
    """Make groups of episodes, bounded in number and in age; hand each over exactly once."""

    def __init__(
        self,
        *,
        workflow: RolloutWorkflow,
        tasks: TaskSource,
        sessions: PoolSessions,
        config: RolloutConfig,
        version: int = 0,
        on_event: EventSink = ignore_event,
        accept: Accept | None = None,
        prepare: Prepare | None = None,
        store: EpisodeStore | None = None,
        runner: Callable[..., EpisodeRunner] = EpisodeRunner,
        clock: Clock | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            version: the policy version the run starts or resumes at.
            accept: called with each finished group; False leaves it out (dynamic sampling).
            prepare: called in a thread with each trajectory to be trained on, for its images.
            store: hears of every episode, and gives back on resume what was not trained on.
            runner: makes what runs episodes; another one runs them elsewhere than here.
            clock: tells how long batches were waited for; the machine's own if None.
        """
        self._clock = clock or SystemClock()
        self._handed_over_at = self._clock.now()
        make_pace: MakePace | None = extension("pace") if config.admission is Admission.JUST_IN_TIME else None
        self._pace = make_pace(config.max_staleness) if make_pace else lambda _waited, _spare: 0.0
        self._tasks = tasks
        self._config = config
        self._on_event = on_event
        self._store = store
        kind = StalenessGate if config.staleness_policy is StalenessPolicy.WAIT else DroppingGate
        self._gate = kind(
            prompts_per_step=config.prompts_per_step,
            max_staleness=config.max_staleness,
            max_concurrent=config.max_concurrent,
            version=version,
        )
        self._runner = runner(
            workflow=workflow,
            sessions=sessions,
            retries=config.retries,
            timeout_s=config.episode_timeout_s,
            on_event=on_event,
            prepare=prepare,
            store=store,
            version=lambda: self._gate.version,
        )
        self._acceptance = Acceptance(accept, tries=config.accept_tries, capacity=self._gate.capacity)
        self._buffer: Buffer[EpisodeGroup] = Buffer(self._gate.max_concurrent + self._gate.capacity)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._evaluations: set[asyncio.Task[Episode | None]] = set()
        self._evaluation_numbers = itertools.count()
        self._counts = Counts()
        self._rejected_in_a_row = 0
        self._ended: deque[bool] = deque(maxlen=_WINDOW * config.prompts_per_step)
        self._admitting = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Begin to admit groups. Called once, in the event loop, when the fleet serves the first version."""
        self._admitting = True
        self._fill()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`; before `start`. Any: plain data.

        Raises:
            DatasetError: the data set is another one.
        """
        assert not self._counts.admitted, "restore before start"
        self._tasks.restore(state["tasks"])
        self._gate.advance(int(state["version"]))
        if self._store is not None:
            self._take_back(self._store.kept(self._gate.version, self._config.group_size, self._tasks.is_used))

    def state(self) -> dict[str, Any]:
        """Return what a resume needs, as plain data. Any: int, bool, list and dict.

        Groups handed over count as trained: save it with weights that were trained on them.
        Everything else is issued again after a resume.
        """
        return {"version": self._gate.version, "tasks": self._tasks.state()}

    def _take_back(self, kept: Sequence[KeptGroup]) -> None:
        """Buffer groups that finished before a resume, as far as the gate admits them; the others are issued again."""
        groups = [kept_group(group, self._tasks.task(group.task_index, group.attempt)) for group in kept]
        for group in sorted(groups, key=lambda group: (group.oldest_version or 0, group.task.index)):
            accepted = self._acceptance.takes(group)
            if not accepted and not self._config.dynamic_batch:  # lost between its end and this very question
                self._counts.admitted += 1
                self._leave_out(group.task, "accept")
            elif self._gate.readmit(group.task.index, group.oldest_version):
                self._tasks.hold(group.task)
                self._buffer.put(group.task.index, evolve(group, accepted=accepted))
                self._counts.admitted += 1
            else:
                self._settle(group.task, Fate.DROPPED)
        self._on_event("episodes_kept", groups=len(self._buffer), of=len(kept))

    async def next_batch(self) -> list[EpisodeGroup]:
        """Wait for the groups to train the current version on, in task order; one batch per version.

        Raises:
            EpisodeFailed: more groups failed than the run allows.
            NoReplica: the whole fleet is out of service.
            StalenessViolation: a group is older than the bound.
            RolloutError: the batch cannot be completed, because nothing runs and nothing may start.
        """
        asked = self._clock.now()
        while True:
            if self._error is not None:
                raise self._error
            if (indices := self._gate.take()) is None:
                if not self._running:
                    raise self._stuck()
                self._changed.clear()
                await self._changed.wait()
            elif groups := self._hand_over(indices, asked):
                return groups

    def set_version(self, version: int) -> None:
        """Tell that the fleet serves `version` and the next batch trains it; opens the gate.

        Raises:
            RolloutError: a version was skipped, under the policy `wait`.
        """
        for index in self._gate.advance(version):
            (group,) = self._buffer.take((index,))
            self._drop(group)
        self._fill()
        self._changed.set()

    def hold(self) -> None:
        """Admit no more groups; those in flight go on. For a clean stop."""
        self._admitting = False

    async def evaluate(self, rows: Sequence[Mapping[str, Any]], sampling: SamplingParams) -> list[Episode]:
        """Run one episode per row, beside the rollouts and outside the gate. Any: a row is the data set's.

        At most prompts_per_step * group_size run at once. Rejected rows are counted and left out; so are those that
        fail, told as events `evaluation_failed`.

        Raises:
            EpisodeFailed: more than `max_failed_share` of the rows failed; the others are cancelled.
            NoReplica: the whole fleet is out of service.
        """
        number, failures = next(self._evaluation_numbers), itertools.count(1)
        limit = asyncio.Semaphore(self._config.prompts_per_step * self._config.group_size)
        calls: list[asyncio.Task[Episode | None]] = []

        async def tolerated(index: int, row: Mapping[str, Any]) -> Episode | None:
            try:
                return await self._evaluate(limit, number, index, row, sampling)
            except EpisodeFailed as error:
                self._on_event("evaluation_failed", task_id=f"eval/{index}", error=str(error))
                if (failed := next(failures)) > (share := self._config.max_failed_share) * len(rows):
                    raise too_many(error, failed, f"{len(rows)} rows of the evaluation", share) from error.__cause__
                return None

        try:
            async with asyncio.TaskGroup() as scope:
                for index, row in enumerate(rows):
                    calls.append(scope.create_task(tolerated(index, row)))
                self._evaluations.update(calls)
        except BaseExceptionGroup as raised:
            first = raised.exceptions[0]
            raise first from first.__cause__
        finally:
            self._evaluations.difference_update(calls)
        if any(call.cancelled() for call in calls):
            raise RolloutError("the evaluation was cut short", why="the executor was closed meanwhile")
        return [episode for call in calls if (episode := call.result()) is not None]

    def stats(self) -> RolloutStats:
        """Return the counts so far. Cheap."""
        counts, ended = asdict(self._counts, recurse=False), tuple(self._counts.failures)
        return RolloutStats(
            version=self._gate.version,
            running=len(self._running),
            buffered=len(self._buffer),
            tokens_generated=self._runner.num_generated,
            **{**counts, "last_lengths": tuple(self._counts.last_lengths), "failures": ended},
        )

    async def close(self) -> None:
        """Cancel and await everything in flight. Idempotent.

        A workflow that ignores cancellation for CLOSE_TIMEOUT_S seconds is reported as an event and left behind.
        """
        self._stop(RolloutError("the executor is closed"))
        this = asyncio.current_task()
        tasks: list[asyncio.Task[Any]] = [*self._running.values(), *self._evaluations]  # Any: results are not looked at
        tasks = [task for task in tasks if task is not this]
        for evaluation in self._evaluations:
            evaluation.cancel()
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        if pending:
            self._on_event("close_incomplete", tasks=sorted(task.get_name() for task in pending))

    def _fill(self) -> None:
        """Admit one group now, and as many more as the gate allows one per turn of the loop.

        A new version makes room for a whole batch at once; starting all of it before anything else
        runs would keep the trainer waiting for its next batch, which is ready. Never raises, for most
        calls come from the loop: what goes wrong comes out of `next_batch`.
        """
        if not self._admitting or self._error is not None or self._gate.room() <= 0:
            return
        try:
            task = self._tasks.next()
        except (Exception, SystemExit) as error:  # whatever a data set raises that reads a row when it is asked for it
            self._stop(_unreadable(error))
            return
        self._gate.admit(task.index)
        self._counts.admitted += 1
        self._running[task.index] = asyncio.create_task(self._run(task), name=task.task_id)
        asyncio.get_running_loop().call_soon(self._fill)

    async def _run(self, task: Task) -> None:
        """Run one group to its end, whatever that is."""
        try:
            group = await run_group(self._runner, task, self._config.group_size)
            accepted = group is not None and self._acceptance.takes(group)
            if group is None:
                self._reject(task)
            elif accepted or self._config.dynamic_batch:
                self._finish(evolve(group, accepted=accepted))
            else:
                self._gate.remove(task.index)
                self._filter(task)
        except EpisodeFailed as error:
            self._fail(task, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # NoReplica, or a bug of ours: comes out of next_batch
            self._stop(error)
            if not isinstance(error, Exception):
                raise
        finally:
            del self._running[task.index]
            self._fill()
            self._changed.set()

    def _finish(self, group: EpisodeGroup) -> None:
        self._rejected_in_a_row = 0
        self._ended.append(True)
        if self._gate.finish(group.task.index, group.oldest_version):
            self._buffer.put(group.task.index, group)
        else:
            self._drop(group)

    def _drop(self, group: EpisodeGroup) -> None:
        self._counts.dropped += 1
        self._settle(group.task, Fate.DROPPED)
        self._tasks.issue_again(group.task.index)
        self._on_event(
            "group_dropped", task_id=group.task.task_id, attempt=group.task.attempt, version=self._gate.version
        )

    def _settle(self, task: Task, fate: Fate, step: int | None = None) -> None:
        if self._store is not None:
            self._store.settled(task.index, task.attempt, fate, step)

    def _filter(self, task: Task) -> None:
        self._leave_out(task, "accept")
        if (error := self._acceptance.left_out()) is not None:
            self._stop(error)

    def _leave_out(self, task: Task, by: str) -> None:
        self._settle(task, Fate.REJECTED)
        self._tasks.use(task.index)
        self._counts.rejected += 1
        if by == "accept":
            self._counts.filtered += 1
        self._on_event("group_rejected", task_id=task.task_id, by=by)

    def _reject(self, task: Task) -> None:
        self._gate.remove(task.index)
        self._leave_out(task, "workflow")
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= max(len(self._tasks), 10 * self._config.prompts_per_step):
            what = f"the workflow rejected {self._rejected_in_a_row} groups in a row"
            why, fix = "a whole epoch of prompts gave nothing to train on", "check why the workflow returns None"
            self._stop(RolloutError(what, why=why, fix=fix))

    def _fail(self, task: Task, error: EpisodeFailed) -> None:
        self._gate.remove(task.index)
        self._settle(task, Fate.FAILED)
        self._tasks.fail(task.index)
        self._counts.fail(error)
        self._ended.append(False)
        failed, window = self._ended.count(False), self._ended.maxlen or 0
        if failed > self._config.max_failed_share * window:
            self._stop(too_many(error, failed, f"the last {window} groups", self._config.max_failed_share))
        self._on_event("group_failed", task_id=task.task_id, error=str(error))

    def _hand_over(self, indices: Sequence[int], asked: float) -> list[EpisodeGroup]:
        """Return what is trained of a batch: nothing if `accept` left all of it out, and others get its places."""
        finished = [stamped(group, self._gate.version) for group in self._buffer.take(indices)]
        for group in finished:
            if not group.accepted:
                self._filter(group.task)
        groups = [group for group in finished if group.accepted]
        if not groups:
            self._gate.discard(len(finished))
            self._fill()
            return groups
        self._acceptance.batch()
        before, self._handed_over_at = self._handed_over_at, self._clock.now()
        waited = (self._handed_over_at - asked) / max(self._handed_over_at - before, 1e-9)
        self._gate.held_back = self._pace(waited, self._gate.num_finished / self._config.prompts_per_step)
        for group in groups:
            self._settle(group.task, Fate.TRAINED, self._gate.version + 1)
            self._tasks.use(group.task.index)
        self._counts.hand_over(groups)
        self._on_event(
            "batch_handed_over",
            version=self._gate.version,
            task_ids=[group.task.task_id for group in groups],
            staleness=dict(self._counts.last_staleness),
        )
        self._fill()
        return groups

    def _stop(self, error: BaseException) -> None:
        """Remember the first error, end what runs, and wake who waits."""
        self._admitting = False
        if self._error is not None:
            return
        self._error = error
        this = asyncio.current_task()
        for task in self._running.values():
            if task is not this:
                task.cancel()
        self._changed.set()

    def _stuck(self) -> RolloutError:
        return RolloutError(
            f"the batch of version {self._gate.version} cannot be completed: "
            f"{len(self._buffer)} of {self._config.prompts_per_step} groups are finished and none is running",
            why="admission is on hold" if not self._admitting else "the gate admits no further group",
            fix="call start() first, and do not ask for a batch after hold()" if not self._admitting else "report this",
        )

    async def _evaluate(
        self, limit: asyncio.Semaphore, number: int, index: int, row: Mapping[str, Any], sampling: SamplingParams
    ) -> Episode | None:
        task_id = TaskId(f"eval/{index}")
        order = EpisodeOrder(task_id=task_id, member=0, row=row, seed_name=task_id, tag=f"@{number}", sampling=sampling)
        async with limit, self._runner.deadline(task_id) as deadline:
            episode, _ = await self._runner.run(order, deadline)
        self._counts.evaluated += episode is not None
        return episode


def _unreadable(error: BaseException) -> ArealError:
    """Return what to raise for a row that could not be read: an error of ours as it is."""
    if isinstance(error, ArealError):
        return error
    wrapped = DatasetError("a row of the data set cannot be read", why=told(error), fix="correct the data set")
    wrapped.__cause__ = error
    return wrapped
