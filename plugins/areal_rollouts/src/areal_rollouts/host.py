"""The worker's end: a process that runs workflows, tokenizer and rewards for the controller of a run.

Knows: which episodes it makes, and what it was told to make them with.
Does not know: the gate, groups or versions of the policy; the controller has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from areal_core.config.model_folder import load_tokenizer
from areal_core.contract.data import Episode
from areal_core.contract.errors import ArealError, CodecError, EpisodeFailed, RolloutError
from areal_core.contract.ids import TaskId
from areal_core.contract.workflow import RolloutWorkflow
from areal_core.plugins.blame import told
from areal_core.plugins.episodes import EndedEpisode
from areal_core.plugins.episodes import Ending as HowItEnded
from areal_core.plugins.extensions import ImageSupport, MakeRewardPool, RewardPool, need
from areal_core.rollout.episodes import EpisodeOrder, EpisodeRunner, Prepare
from areal_core.rollout.session import PoolSessions
from areal_local.rewards import messages as rows
from areal_rollouts.asking import AskedFleet
from areal_rollouts.line import Line
from areal_rollouts.messages import Answer, Ending, Made, Make, Message, Stop, Tell, pack, unpack
from areal_rollouts.spec import EpisodeSpec
from areal_worker.service import Place, find_method


class _Deadline:
    """Whether the controller found an episode late."""

    late = False

    def expired(self) -> bool:
        return self.late


class _Heard:
    """Stands where a store does, for one episode: keeps how its last try ended."""

    last: EndedEpisode | None = None

    def ended(self, episode: EndedEpisode) -> None:
        self.last = episode


class WorkflowHost:
    """Implements `areal_worker.service.Host` for the engine role `workflow`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._line = Line()
        self.fleet = AskedFleet(self._send)
        self._making: dict[int, tuple[asyncio.Task[None], _Deadline]] = {}
        self._rewards: RewardPool | None = None
        self._runner: Callable[..., EpisodeRunner] | None = None
        self._tells = False
        self._methods: Mapping[str, Callable[..., Awaitable[Any]]] = {  # Any: one signature per method
            "start": self._start,
            "tell": self._hear,
            "news": self._line.take,
            "close": self.close,
        }

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Run one method. Any: its own arguments and result."""
        return await find_method(self._methods, method, self._place)(*args)

    async def close(self) -> None:
        """Make no more episodes and end the reward processes. Idempotent."""
        tasks = [task for task, _ in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        rewards, self._rewards = self._rewards, None
        if rewards is not None:
            await rewards.close()

    def serve(self, runner: Callable[..., EpisodeRunner], *, tell: bool) -> None:
        """Make episodes from now on, each with a runner of its own.

        Args:
            runner: called with `store` and `on_event`; its sessions ask `fleet`.
            tell: whether the controller hears how each try ended.
        """
        self._runner, self._tells = runner, tell

    async def _start(self, fields: Mapping[str, Any]) -> None:  # Any: the fields of an EpisodeSpec
        """Build what makes episodes, so that its errors come before training does."""
        spec, registry = EpisodeSpec(**fields), self._place.registry
        for path in self._place.imports:
            registry.add_file(Path(path))
        workflow = registry.build("workflow", self._place.backend, spec.workflow_options, "rollout.workflow.options")
        assert isinstance(workflow, RolloutWorkflow)
        self._rewards = await self._start_rewards(spec)
        sessions = PoolSessions(
            pool=self.fleet,
            rewards=self._rewards,
            tokenizer=await asyncio.to_thread(load_tokenizer, Path(spec.model_path)),
            sampling=spec.sampling,
            seed=spec.seed,
            image_token_id=spec.image_token_id,
        )
        prepare = await asyncio.to_thread(_images, spec)
        runner = partial(
            EpisodeRunner,
            workflow=workflow,
            sessions=sessions,
            retries=spec.retries,
            timeout_s=spec.timeout_s,
            prepare=prepare,
        )
        self.serve(runner, tell=spec.tell)

    async def _start_rewards(self, spec: EpisodeSpec) -> RewardPool:
        make: MakeRewardPool = need("rewards", "rollout.processes")
        loop = asyncio.get_running_loop()

        def tell(kind: str, **values: Any) -> None:  # Any: plain data; from any thread
            loop.call_soon_threadsafe(partial(self._tell, kind, **values))

        rewards = make(
            *(spec.reward_name, spec.reward_options),
            imports=self._place.imports,
            workers=spec.reward_workers,
            timeout_s=spec.reward_timeout_s,
            tell=tell,
        )
        await rewards.start()
        return rewards

    async def _hear(self, batch: list[bytes]) -> None:
        """Take messages of the controller in, in their order."""
        for data in batch:
            message = unpack(data)
            if isinstance(message, Answer):
                self.fleet.answered(message)
            elif isinstance(message, Make):
                deadline = _Deadline()
                self._making[message.number] = asyncio.create_task(self._run(message, deadline)), deadline
            elif isinstance(message, Stop) and message.number in self._making:
                task, deadline = self._making[message.number]
                deadline.late = message.late
                task.cancel()

    async def _run(self, make: Make, deadline: _Deadline) -> None:
        """Make one episode, whatever comes of it."""
        heard, num_generated = _Heard(), 0
        assert self._runner is not None, "episodes are asked for after `start`"
        runner = self._runner(store=heard if self._tells else None, on_event=self._tell)
        outcome: Episode | ArealError | None = None
        try:
            order = EpisodeOrder(
                task_id=TaskId(make.task_id),
                index=make.index,
                attempt=make.attempt,
                member=make.member,
                row=rows.delivered(make.row),
                seed_name=make.seed_name,
                tag=make.tag,
                sampling=make.sampling,
            )
            outcome, num_generated = await runner.run(order, deadline)
        except asyncio.CancelledError:
            outcome = RolloutError(f"episode {make.task_id} was cancelled")
        except ArealError as error:
            outcome = error
        except BaseException as error:  # a bug of ours: it ends the run, as it does in the controller
            outcome = RolloutError(f"episode {make.task_id} broke {self._place.worker}", why=told(error))
            if not isinstance(error, Exception):
                raise
        finally:
            del self._making[make.number]
            ending = _ending(heard.last)
            self._send_made(
                Made(
                    number=make.number,
                    outcome=outcome,
                    num_generated=num_generated,
                    num_generated_in_all=runner.num_generated,
                    ending=ending,
                )
            )

    def _send_made(self, made: Made) -> None:
        try:
            plain = _plain(made.outcome) if isinstance(made.outcome, Episode) else made.outcome
            self._send(evolve(made, outcome=plain))
        except (CodecError, TypeError, ValueError) as error:
            failed = EpisodeFailed(
                "an episode does not travel from the process that made it",
                why=f"{error.what}: {error.why}" if isinstance(error, CodecError) else told(error),
                fix="keep tensors and plain numbers in trajectories and metrics",
            )
            ending = made.ending and Ending(*made.ending)._replace(
                ending=HowItEnded.FAILED.value, trajectories=(), reward=None, error=str(failed)
            )
            self._send(evolve(made, outcome=failed, ending=ending and tuple(ending)))

    def _send(self, message: Message) -> None:
        self._line.put(pack(message))

    def _tell(self, kind: str, **values: Any) -> None:  # Any: plain data
        self._send(Tell(kind=kind, fields=rows.carried(values)))


def _images(spec: EpisodeSpec) -> Prepare | None:
    """Return what prepares images for training, None if the policy takes none."""
    if spec.image_token_id is None:
        return None
    support: ImageSupport = need("images", "a policy that takes images")
    images = support.preparer(Path(spec.model_path), max_tokens=spec.longest)
    return None if images is None else images.prepare


def _plain(episode: Episode) -> Episode:
    """Return an episode whose numbers are Python's own, as far as a workflow may have numpy's or torch's."""
    trajectories = [evolve(each, reward=float(each.reward)) for each in episode.trajectories]
    metrics = {str(name): float(value) for name, value in episode.metrics.items()}
    return evolve(episode, metrics=metrics, trajectories=trajectories)


def _ending(ended: EndedEpisode | None) -> tuple[Any, ...] | None:  # Any: the fields of an Ending
    if ended is None:
        return None
    finished = ended.ending is HowItEnded.FINISHED
    return tuple(
        Ending(
            ending=ended.ending.value,
            trajectories=() if finished else tuple(ended.trajectories),
            reward=ended.reward,
            seconds=ended.seconds,
            replica=ended.replica,
            error=ended.error,
        )
    )
