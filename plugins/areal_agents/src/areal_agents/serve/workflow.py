"""The workflow `online`: the session of an outside client is an episode.

Knows: what of a session is trained on.
Does not know: who the clients are, or how they come (`reception`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_agents.serve.reception import Reception
from areal_core.contract.data import Episode
from areal_core.contract.errors import ConfigError
from areal_core.contract.workflow import Session, require_ok


class OnlineWorkflow:
    """Makes episodes of sessions; rows have nothing to say."""

    def __init__(self) -> None:
        """Know nobody yet: a run of the kind `online` connects it."""
        self.reception: Reception | None = None
        self.turn_discount = 1.0

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode | None:
        """Wait for a client; None if its session ended without a reward, or asked nothing. Any: as in the contract.

        Raises:
            ConfigError: this is no run of the kind `online`, which lets clients in.
            NoReplica, GenerationFailed: the fleet failed during the session.
        """
        if self.reception is None:
            why = "only a run of the kind online lets them in"
            raise ConfigError("the workflow online has no clients", why=why, fix="areal serve run.yaml")
        session = await self.reception.visit(engine)
        opened = session.opened
        if opened.failure is not None:
            raise opened.failure
        if not session.teaches or session.reward is None:
            return None
        reward = require_ok(session.reward, f"session {session.id}")
        return Episode(
            trajectories=opened.trajectories(reward, turn_discount=self.turn_discount),
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={**session.reward.components, **opened.metrics, **self.reception.metrics()},
        )
