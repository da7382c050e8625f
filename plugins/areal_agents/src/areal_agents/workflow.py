"""The workflow `agent`: one call of the user's agent is one episode.

Knows: where the reward comes from, and that every answer is trained on.
Does not know: what the agent asks, or how.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from areal_agents.config import AgentConfig
from areal_agents.endpoint import Endpoint
from areal_agents.episode import AgentEpisode
from areal_agents.source import agent_function
from areal_core.contract.data import Episode
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardInput, RewardResult, Session, require_ok


class AgentWorkflow:
    """Calls the agent with a row, a base URL and a key; what it asked becomes trajectories."""

    def __init__(self, config: AgentConfig, *, run: Callable[..., Any] | None = None) -> None:
        """Import the agent that the options name; `run` takes its place."""
        self._config = config
        self._run = run or agent_function(config.run)
        self._endpoint: Endpoint | None = None
        self._starting = asyncio.Lock()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode of a row, whatever its columns. Any: as in the contract.

        Raises:
            EpisodeFailed: the agent asked nothing, or nobody told a reward.
            RewardFailed: the reward function that judges its last answer did not give a number.
            NoReplica, GenerationFailed: the fleet failed during it, also where the agent went on.
            Anything: what the agent raised.
        """
        endpoint = await self._listening()
        episode = AgentEpisode(session=engine, config=self._config)
        with endpoint.open(episode) as key:
            returned = await self._called(dict(data), endpoint.url, key)
        if episode.failure is not None:
            raise episode.failure
        if episode.last is None:
            raise EpisodeFailed(
                f"the agent asked nothing in episode {engine.task_id}",
                why="there is no answer of the policy to train on",
                fix="have it use the base_url and the api_key that it is given",
            )
        result = await self._reward(returned, episode, data)
        reward = require_ok(result, f"episode {engine.task_id}")
        recorder = episode.recorder
        told = {"agent/requests": float(recorder.num_answers), "agent/trajectories": float(len(recorder.branches))}
        return Episode(
            trajectories=recorder.trajectories(reward, self._config.turn_discount),
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={**told, **result.components},
        )

    async def close(self) -> None:
        """End the endpoint, which else ends with the event loop. Idempotent."""
        if self._endpoint is not None:
            await self._endpoint.close()
            self._endpoint = None

    async def _listening(self) -> Endpoint:
        async with self._starting:
            if self._endpoint is None:
                endpoint = Endpoint()
                await endpoint.start()
                self._endpoint = endpoint
            return self._endpoint

    async def _called(self, row: dict[str, Any], url: str, key: str) -> object:
        if inspect.iscoroutinefunction(self._run):
            return await self._run(row, url, key)
        return await asyncio.to_thread(self._run, row, url, key)

    async def _reward(self, returned: object, episode: AgentEpisode, data: Mapping[str, Any]) -> RewardResult:
        if isinstance(returned, RewardResult):
            return returned
        if isinstance(returned, int | float) and math.isfinite(returned):
            return RewardResult(value=float(returned))
        if returned is not None:
            raise EpisodeFailed(
                f"the agent returned {str(returned)[:60]!r} in episode {episode.session.task_id}",
                why=f"a {type(returned).__name__} is no finite number",
                fix="return the reward, a RewardResult, or None",
            )
        if episode.reward is not None:
            return RewardResult(value=episode.reward)
        assert episode.last is not None
        prompt_ids, generation = episode.last
        tokenizer = episode.session.tokenizer
        return await episode.session.reward(
            RewardInput(
                prompt=tokenizer.decode(list(prompt_ids)),
                completion=tokenizer.decode(generation.output_ids, skip_special_tokens=True),
                completion_ids=generation.output_ids,
                stop_reason=str(generation.stop_reason),
                row=data,
            )
        )
