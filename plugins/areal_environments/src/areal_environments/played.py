"""An environment as an agent: whatever plays one episode against the endpoint is a workflow.

Knows: the options that every environment shares, and how they reach the workflow of agents.
Does not know: any environment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import field, fields, frozen, validators

from areal_agents.config import AgentConfig
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.workflow import RewardResult

Row = dict[str, Any]  # Any: the data set decides what a row holds
Play = Callable[[Row, str, str], Awaitable[RewardResult]]
"""Plays the episode of a row against the endpoint: play(row, base_url, api_key)."""


@frozen(kw_only=True)
class PlayedConfig(EndpointConfig):
    """Options of every environment's workflow: those of the workflow `agent`."""

    turn_discount: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """The reward of a trajectory that ends n requests before the episode's last one counts this to the power of n."""
    max_requests: int = field(default=64, validator=validators.ge(1))
    """Requests of one episode; one more is refused with 429."""
    concurrency: int = field(default=8, validator=validators.ge(1))
    """Requests of one episode that are generated at once; more wait."""
    agent_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """One episode of the environment."""
    endpoint: str = "http"
    """The plugin that answers the environment: `areal backends --role endpoint`."""


class PlayedWorkflow(AgentWorkflow):
    """The workflow whose agent is an environment."""

    def __init__(self, config: PlayedConfig, play: Play, *, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take what plays an episode, and what ends whatever serves the environment here."""
        shared = {each.name: getattr(config, each.name) for each in fields(PlayedConfig)}
        super().__init__(AgentConfig(run=f"{__name__}:Play", **shared), run=play)
        self._closing = close

    async def close(self) -> None:
        """End the endpoint, and the environment's server if it is here; both else end with the event loop."""
        await super().close()
        if self._closing is not None:
            await self._closing()
