"""One run of a workflow for one prompt, made to end well: retried by error class, checked, bounded.

Knows: the workflow, how to open a session, which errors are worth another try.
Does not know: groups, staleness, or what becomes of the episode.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from attrs import evolve, frozen

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import ArealError, EpisodeFailed, NoReplica
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import IMAGES, SamplingParams
from areal_core.contract.trajectory import from_generation
from areal_core.contract.workflow import RolloutWorkflow
from areal_core.observe.events import EventSink, ignore_event
from areal_core.plugins.blame import told
from areal_core.plugins.episodes import EndedEpisode, Ending, EpisodeStore
from areal_core.rollout.session import PoolSession, PoolSessions

Prepare = Callable[[Trajectory], Trajectory]
"""Makes a trajectory what the trainer takes. May take long: it never runs in the event loop."""


class Deadline(Protocol):
    """What bounds an episode."""

    def expired(self) -> bool:
        """Tell whether its time is over."""


class RowRejected(Exception):
    """The workflow rejected the row of an episode that others need."""


@frozen(kw_only=True)
class EpisodeOrder:
    """What to run: one member of one group, or one evaluation prompt.

    `seed_name` decides the seeds; `tag` keeps the names of sessions apart where task ids repeat.
    `index` and `attempt` are the task's; evaluations have index -1.
    """

    task_id: TaskId
    index: int = -1
    attempt: int = 0
    member: int
    row: Mapping[str, Any]  # Any: the data set decides
    seed_name: str
    tag: str = ""
    sampling: SamplingParams | None = None


class EpisodeRunner:
    """Run episodes, each in a session of its own per try. One per executor."""

    def __init__(
        self,
        *,
        workflow: RolloutWorkflow,
        sessions: PoolSessions,
        retries: int,
        timeout_s: float,
        on_event: EventSink = ignore_event,
        prepare: Prepare | None = None,
        store: EpisodeStore | None = None,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start nothing yet.

        Args:
            retries: further tries after a retryable error, with the same seeds.
            timeout_s: bounds what is awaited under `deadline`.
            prepare: makes a trajectory what the trainer takes; called in a thread of its own. None leaves it.
            store: hears how every episode ended, and at which `version`.
        """
        self.num_generated = 0
        """Tokens of every session so far, of rejected, failed and repeated tries too."""
        self.on_event = on_event
        self._workflow = workflow
        self._sessions = sessions
        self._retries, self._timeout_s = retries, timeout_s
        self._prepare = prepare
        self._store, self._version = store, version

    async def run(self, order: EpisodeOrder, deadline: Deadline, *, needed: bool = False) -> tuple[Episode | None, int]:
        """Return the episode, None if the workflow rejected the row; and how many tokens its last try generated.

        Raises:
            EpisodeFailed: the workflow raised, or returned something that cannot be trained on.
            NoReplica: no episode can be made any more, by anyone.
            RowRejected: the workflow rejected the row, and an episode is `needed`.
        """
        started = time.time()
        for attempt in range(self._retries + 1):
            session = self._sessions.open(
                task_id=order.task_id,
                name=f"{order.task_id}{order.tag}#{order.member}.{attempt}",
                seed_name=order.seed_name,
                sampling=order.sampling,
            )
            try:
                result = await self._workflow.arun_episode(session, order.row)
                episode = await self._prepared(order, _episode(result, order))
                self._tell(order, session, started, episode)
            except NoReplica:
                raise
            except asyncio.CancelledError:
                self._cancelled(order, session, started, deadline)
                raise
            except (Exception, SystemExit, GeneratorExit) as exc:  # sys.exit in a workflow ends an episode, not the run
                if not getattr(exc, "retryable", False) or attempt == self._retries:
                    failure = _failed(order, exc)
                    self._tell(order, session, started, None, str(failure))
                    raise failure from exc
                self.on_event("episode_retried", task_id=order.task_id, member=order.member, error=str(exc))
            else:
                if needed and episode is None:
                    raise RowRejected
                return episode, session.num_generated
            finally:
                self.num_generated += session.num_generated
                await session.close()
        raise AssertionError("the last try returns or raises")

    def _cancelled(self, order: EpisodeOrder, session: PoolSession, started: float, deadline: Deadline) -> None:
        """Tell what a cancellation ended; raise a failure if nobody cancelled the episode but it itself."""
        late, ends = deadline.expired(), _being_cancelled()
        failure = _failed(order, self._late(order.task_id) if late else RuntimeError("it cancelled itself"))
        if late or not ends:
            self._tell(order, session, started, None, str(failure))
        if not ends:
            raise failure from None

    async def _prepared(self, order: EpisodeOrder, episode: Episode | None) -> Episode | None:
        """Return an episode of a group with what its trajectories carry made ready for training, in a thread."""
        prepare = self._prepare
        if episode is None or prepare is None or order.index < 0:
            return episode
        made = await asyncio.to_thread(lambda: [prepare(trajectory) for trajectory in episode.trajectories])
        return evolve(episode, trajectories=made)

    def _tell(
        self, order: EpisodeOrder, session: PoolSession, started: float, episode: Episode | None, error: str = ""
    ) -> None:
        """Tell the store how an episode ended; of one that failed or was rejected, what it had generated."""
        if self._store is None:
            return
        turns = [
            from_generation(request.input_ids, generation, 0.0, images=request.extras.get(IMAGES, ()))
            for request, generation in (session.turns if episode is None else ())
            if not request.adapter
        ]
        self._store.ended(
            EndedEpisode(
                ending=Ending.FAILED if error else Ending.REJECTED if episode is None else Ending.FINISHED,
                task_id=order.task_id,
                task_index=order.index,
                attempt=order.attempt,
                member=order.member,
                version=self._version(),
                row=order.row,
                trajectories=turns if episode is None else episode.trajectories,
                metrics={} if episode is None else episode.metrics,
                reward=session.last_reward,
                started=started,
                seconds=time.time() - started,
                replica=session.home,
                error=error,
            )
        )

    @asynccontextmanager
    async def deadline(self, task_id: TaskId) -> AsyncIterator[asyncio.Timeout]:
        """Bound everything awaited inside: all members of a group, with all their tries. `run` asks whether it did.

        Raises:
            EpisodeFailed: the time is over.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as scope:
                yield scope
        except TimeoutError as exc:
            if not scope.expired():
                raise
            raise self._late(task_id) from exc

    def _late(self, task_id: TaskId) -> EpisodeFailed:
        return EpisodeFailed(
            f"the episodes of {task_id} were not done after {self._timeout_s:g} s",
            why="a workflow waits for something that never happens",
            fix="bound the waits in the workflow, or raise rollout.episode_timeout_s",
        )


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _episode(result: object, order: EpisodeOrder) -> Episode | None:
    """Return a lawful episode of the right task, or raise what is wrong with it."""
    if result is None:
        return None
    if isinstance(result, Trajectory):
        result = Episode(trajectories=(result,), task_id=order.task_id, group_id=GroupId(order.task_id))
    if not isinstance(result, Episode):
        raise EpisodeFailed(
            f"the workflow returned {type(result).__name__}",
            why="arun_episode returns an Episode, a Trajectory, or None to reject the row",
        )
    if result.task_id != order.task_id or str(result.group_id) != order.task_id:
        raise EpisodeFailed(
            f"the workflow returned an episode of task {result.task_id!r}, group {result.group_id!r}",
            why="baselines are computed per group",
            fix="pass task_id=engine.task_id and group_id=engine.group_id",
        )
    if not result.trajectories:
        raise EpisodeFailed("the workflow returned an episode without a trajectory", fix="return None to reject a row")
    for trajectory in result.trajectories:
        if not math.isfinite(trajectory.reward):
            raise EpisodeFailed(
                f"the workflow returned a reward of {trajectory.reward}", why="a reward is a finite number"
            )
    return result


def _failed(order: EpisodeOrder, exc: BaseException) -> EpisodeFailed:
    """Name the episode; what, why and fix of the original error stay readable."""
    what = f"episode {order.task_id}, member {order.member}, failed"
    if not isinstance(exc, ArealError):
        fix = f"see its row and output: areal episodes RUN --task {order.task_id}; returning None rejects a row"
        return EpisodeFailed(what, why=told(exc), fix=fix)
    why = exc.what if isinstance(exc, EpisodeFailed) else f"{type(exc).__name__}: {exc.what}"
    return EpisodeFailed(what, why=f"{why}\n    {exc.why}" if exc.why else why, fix=exc.fix)


def too_many(error: EpisodeFailed, failed: int, window: str, share: float) -> EpisodeFailed:
    """Return the last failure as the error of a whole run or evaluation: itself where none is allowed."""
    if not share:
        return error
    counted = f"{failed} of {window} failed, rollout.max_failed_share={share:g} allows fewer; the last: "
    raised = EpisodeFailed(counted + error.what, why=error.why, fix=error.fix)
    raised.__cause__ = error.__cause__
    return raised
