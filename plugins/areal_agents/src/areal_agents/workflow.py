"""The workflow `agent`: one call of the user's agent is one episode.

Knows: where the reward comes from, and that every answer is trained on.
Does not know: how an agent is called (`function`, `command`), or what it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from areal_agentic.endpoint import AgentEndpoint, OpenSession, SessionLimits
from areal_agents.agents_loop import AgentsLoop
from areal_agents.command import CommandAgent
from areal_agents.config import AgentConfig
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.function import FunctionAgent
from areal_agents.source import agent_function
from areal_agents.told import reward_told
from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError, EpisodeFailed
from areal_core.contract.workflow import RewardInput, RewardResult, Session, Tokenizer, require_ok
from areal_core.plugins.registry import current_registry
from areal_core.plugins.structure import unstructure

Agent = Callable[[dict[str, Any], str, str, str], Awaitable[object]]
"""Called with a row, a base URL, a key and the episode's name. Any: a row is the data set's."""


class AgentWorkflow:
    """Calls the agent with a row, a base URL and a key; what it asked becomes trajectories."""

    def __init__(self, config: AgentConfig, *, run: Callable[..., Any] | None = None) -> None:
        """Import the agent that the options name; `run` takes its place, and is awaited in the loop of the run.

        Any: the user's own.
        """
        self._config = config
        self._loop = AgentsLoop()
        self._agent = _agent(config, run, self._loop)
        self._endpoint = _endpoint(config)
        self._starting = asyncio.Lock()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode of a row, whatever its columns. Any: as in the contract.

        Raises:
            EpisodeFailed: the agent asked nothing, took too long, or returned no reward; or its command failed.
            PromptTooLong, CapabilityError, BatchError, DatasetError: nothing it asked was answered, and the last of it
                that was refused was refused for this; EpisodeFailed where that could not be done or read.
            RewardFailed: the reward function that judges its last answer did not give a number.
            NoReplica, GenerationFailed: the fleet failed during it, also where the agent went on.
            Anything: what the agent raised.
        """
        async with self._starting:
            await self._endpoint.start()
        limits = SessionLimits(max_requests=self._config.max_requests, concurrency=self._config.concurrency)
        with self._endpoint.open(engine, limits) as episode:
            returned = await self._agent(dict(data), self._endpoint.url, episode.key, engine.task_id)
        if episode.failure is not None:
            raise episode.failure
        if episode.last is None:
            raise _unanswered(episode, engine.task_id)
        result = reward_told(returned, engine.task_id) or await _reward(engine, episode, data)
        reward = require_ok(result, f"episode {engine.task_id}")
        return Episode(
            trajectories=episode.trajectories(reward, turn_discount=self._config.turn_discount),
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={**episode.metrics, **result.components},
        )

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer; empty for an endpoint that does not tell."""
        named = getattr(self._endpoint, "writes", None)
        try:
            return "" if named is None else str(named(tokenizer))
        except DatasetError as error:  # an agent that asks with texts needs none
            return f"none: {error.what}"

    async def close(self) -> None:
        """End the endpoint, which else ends with the event loop, and the loop of the agents. Idempotent."""
        self._loop.close()
        await self._endpoint.close()


def _agent(config: AgentConfig, run: Callable[..., Any] | None, loop: AgentsLoop) -> Agent:  # Any: the user's own
    if run is None and config.command:
        return CommandAgent(config)
    function = run or agent_function(config.run)
    return FunctionAgent(
        function, threads=config.processes, timeout_s=config.agent_timeout_s, loop=None if run else loop
    )


def _endpoint(config: AgentConfig) -> AgentEndpoint:
    """Return the endpoint that the options name, given those of them that are its own and set."""
    given, default = unstructure(config), unstructure(EndpointConfig())
    options = {name: given[name] for name in default if given[name] != default[name]}
    built = current_registry().build("endpoint", config.endpoint, options, "rollout.workflow.options")
    assert isinstance(built, AgentEndpoint)
    return built


def _unanswered(episode: OpenSession, name: str) -> BaseException:
    """Return why an agent that ended has no answer: its last request was refused, or it made none."""
    refused: BaseException | None = getattr(episode, "refused", None)  # an endpoint of others may not tell
    return refused or EpisodeFailed(
        f"the agent asked nothing in episode {name}",
        why="there is no answer of the policy to train on",
        fix="have it use the base_url and the api_key that it is given",
    )


async def _reward(engine: Session, episode: OpenSession, data: Mapping[str, Any]) -> RewardResult:
    """Return the reward that the agent told by call, or else what the run's own function makes of its last answer."""
    if episode.reward is not None:
        return RewardResult(value=episode.reward)
    assert episode.last is not None
    prompt_ids, generation = episode.last
    tokenizer, own = engine.tokenizer, data.get("prompt")
    return await engine.reward(
        RewardInput(
            prompt=own if isinstance(own, str) else tokenizer.decode(list(prompt_ids)),
            completion=tokenizer.decode(generation.output_ids, skip_special_tokens=True),
            completion_ids=generation.output_ids,
            stop_reason=str(generation.stop_reason),
            row=data,
        )
    )
