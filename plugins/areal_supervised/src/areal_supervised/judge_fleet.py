"""A judge that is a fleet of the run: asked in its own tokens, answered with a score.

Knows: one question is one request; what a score counts beside another reward.
Does not know: where replicas run, or the question's words (`areal_tasks.rewards.verdict`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from attrs import evolve

from areal_agentic.renderer import BoundRenderer, Renderer
from areal_core.config.model_folder import load_tokenizer
from areal_core.contract.errors import DatasetError, PromptTooLong
from areal_core.contract.ids import TaskId
from areal_core.contract.inference import SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.plugins.extensions import RewardPool
from areal_core.plugins.registry import current_registry
from areal_core.rollout.session import PoolSessions
from areal_supervised.judged_config import JudgedConfig

COMPONENT = "judge"
"""The part of a reward that is the judge's score, before its weight."""


class JudgeFleet:
    """Asks one fleet about answers. Belongs to one event loop."""

    def __init__(
        self,
        config: JudgedConfig,
        model: Path,
        *,
        start_pool: Callable[[], Awaitable[InferencePool]],
        seed: int,
    ) -> None:
        """Build the renderer; nothing starts before `start`."""
        self._config, self._model, self._start_pool, self._seed = config, model, start_pool, seed
        made = current_registry().build(
            "renderer", config.renderer, config.renderer_options, "options.renderer_options"
        )
        assert isinstance(made, Renderer), f"{config.renderer} is no renderer"
        self._renderer = made
        self._numbers = count()
        self._sessions: PoolSessions
        self._bound: BoundRenderer

    async def start(self) -> None:
        """Bind the renderer to the judge's tokenizer, and start the replicas.

        Raises:
            DatasetError: the renderer does not write conversations as the judge's own template does.
            WorkerError, ResourceError: as `ReplicaLauncher.start_pool`.
        """
        tokenizer = load_tokenizer(self._model)
        self._bound = self._renderer.bind(tokenizer)
        config, ends = self._config, self._bound.stop_token_ids
        sampling = SamplingParams(
            max_new_tokens=config.max_tokens, temperature=config.temperature, stop_token_ids=tuple(sorted(ends))
        )
        pool = await self._start_pool()
        self._sessions = PoolSessions(pool=pool, rewards=None, tokenizer=tokenizer, sampling=sampling, seed=self._seed)

    async def judge(self, value: RewardInput) -> RewardResult:
        """Return the judge's score of an answer, and how long its words were.

        Raises:
            NoReplica, GenerationFailed, WorkerTimeout: the judge's fleet failed.
        """
        began = time.monotonic()
        try:
            question = self._config.asked(value.prompt, value.completion, value.row)
            score, characters = await self._scored(question)
        except (DatasetError, PromptTooLong, ValueError) as error:
            seconds = time.monotonic() - began
            return RewardResult(value=None, status=RewardStatus.RAISED, detail=str(error), seconds=seconds)
        parts = {COMPONENT: score, "judge_characters": float(characters)}
        return RewardResult(value=score, components=parts, seconds=time.monotonic() - began)

    async def _scored(self, question: str) -> tuple[float, int]:
        prompt_ids = self._bound.render([{"role": "user", "content": question}])
        session = self._sessions.open(task_id=TaskId("judge"), name=f"judge/{next(self._numbers)}", seed_name=question)
        for left in reversed(range(self._config.tries)):
            said = await session.generate(prompt_ids)
            verdict = self._bound.parse(said.output_ids).content
            try:
                return self._config.score(verdict), len(verdict)
            except ValueError:
                if not left:
                    raise
        raise AssertionError("tries is at least 1")


class JudgedRewards:
    """Satisfies `RewardPool`: the run's own reward, if it has one, and what a judge's score counts beside it."""

    def __init__(self, fleet: JudgeFleet, own: RewardPool | None, *, weight: float) -> None:
        self._fleet, self._own, self._weight = fleet, own, weight

    async def start(self) -> None:
        """Start both."""
        starting: list[Any] = [self._fleet.start()]  # Any: coroutines
        if self._own is not None:
            starting.append(self._own.start())
        await gather_or_cancel(starting)

    async def score(self, value: RewardInput) -> RewardResult:
        """Return the sum; the first of the two that failed, if one did.

        Raises:
            NoReplica, GenerationFailed, WorkerTimeout: the judge's fleet failed.
        """
        if self._own is None:
            judged = await self._fleet.judge(value)
            return judged if judged.value is None else evolve(judged, value=self._weight * judged.value)
        own, judged = await gather_or_cancel([self._own.score(value), self._fleet.judge(value)])
        if own.value is None:
            return own
        if judged.value is None:
            return judged
        parts = {**own.components, **judged.components}
        total = own.value + self._weight * judged.value
        return RewardResult(value=total, components=parts, seconds=max(own.seconds, judged.seconds))

    async def close(self) -> None:
        """End the reward processes; the scheduler ends the judge's."""
        if self._own is not None:
            await self._own.close()
