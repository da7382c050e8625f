"""The bench of the core's own loop: its rollout side on scripted replicas and a step clock, its checkpoints on disk.

What is under test are the classes of `LoopParts`; a mutant puts another one in.

Knows: how the parts are put together for a check.
Does not know: any backend: replicas are scripted, and no second passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen
from tests.benches.rollouts import RolloutBench, RolloutParts

from areal_conformance.adapter import Adapter, Case
from areal_conformance.benches.base import Bench
from areal_core.config.schema import RolloutConfig
from areal_core.contract.inference import SamplingParams
from areal_core.fleet.turns import Turns
from areal_core.loop.checkpoint import begin_checkpoint, save_checkpoint
from areal_core.loop.learner import Learner
from areal_core.loop.run_folder import RunFolder
from areal_core.rollout.groups import EpisodeGroup


@frozen(kw_only=True)
class LoopParts:
    """The core's own classes, or those that stand for them."""

    rollout: RolloutParts = RolloutParts()
    save_checkpoint: Callable[..., Any] = save_checkpoint
    begin_checkpoint: Callable[..., Any] = begin_checkpoint
    run_folder: Callable[..., RunFolder] = RunFolder
    turns: Callable[..., Turns] = Turns
    learner: Callable[..., Learner] = Learner


def _build(case: Case) -> LoopParts:
    return LoopParts()


LOOP_ADAPTER = Adapter(build=_build)


class LoopBench(Bench):
    """Bench of the role `loop`."""

    steps_time = True

    @property
    def parts(self) -> LoopParts:
        """Return the classes under test."""
        case = Case(role="loop", device="cpu", make=lambda _options: LoopParts(), folder=self.folder)
        parts: LoopParts = self.target.adapter.build(case)
        return parts

    def run_folder(self, name: str) -> RunFolder:
        """Return the folder of a run that was begun, made by the class under test."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.parts.run_folder(self.folder / name)

    @asynccontextmanager
    async def rollouts(
        self, *, prompts: int = 2, group: int = 2, staleness: int = 1, **options: Any
    ) -> AsyncIterator[RolloutBench]:
        """Yield a started rollout side. Any: fields of RolloutConfig, else arguments of RolloutBench."""
        fields = {key: options.pop(key) for key in tuple(options) if key in _CONFIG}
        config = RolloutConfig(
            **{
                "prompts_per_step": prompts,
                "group_size": group,
                "max_staleness": staleness,
                "retries": 0,
                "max_failed_share": 0.0,
                "sampling": SamplingParams(max_new_tokens=64),
                **fields,
            }
        )
        side = RolloutBench(config, parts=self.parts.rollout, **options)
        try:
            yield side
        finally:
            await side.close()


# A check gives a workflow and a function, not their names.
_CONFIG = frozenset(field.name for field in RolloutConfig.__attrs_attrs__) - {"workflow", "accept"}


def indices(groups: list[EpisodeGroup]) -> list[int]:
    """Return the task numbers of a batch."""
    return [group.task.index for group in groups]


def oldest_token(group: EpisodeGroup) -> int:
    """Return the oldest version among the trained tokens of a group, read from the tokens themselves."""
    return min(
        int(trajectory.versions[trajectory.loss_mask].min())
        for episode in group.episodes
        for trajectory in episode.trajectories
        if bool(trajectory.loss_mask.any())
    )
