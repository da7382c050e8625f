"""Where agents ask the policy: the protocols of the role `endpoint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, runtime_checkable

from attrs import field, frozen, validators

from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation
from areal_core.contract.workflow import Session


class Export(StrEnum):
    """What a session's answers become; an option of endpoints."""

    CONCATENATED = "concatenated"
    """A conversation that grows is one trajectory with every answer on its mask."""
    INDIVIDUAL = "individual"
    """Each answer is a trajectory of its own, what stands before it is context."""


@frozen(kw_only=True)
class SessionLimits:
    """What one session of an endpoint may ask.

    Example: SessionLimits(max_requests=16, concurrency=4)
    """

    max_requests: int = field(default=64, validator=validators.ge(1))
    """One more is refused with 429."""
    concurrency: int = field(default=8, validator=validators.ge(1))
    """Requests generated at once; more wait."""


@runtime_checkable
class OpenSession(Protocol):
    """One agent's session behind its key, while it is open and afterwards."""

    key: str
    """The bearer token; it opens nothing once the session is closed, and is never given out again."""
    reward: float | None
    """Told by `POST {url}/reward`, the last one; None if none was."""
    failure: BaseException | None
    """What the fleet failed with, whatever the agent made of the error it was told."""
    last: tuple[Sequence[int], Generation] | None
    """The newest prompt and its first answer; None if nothing was answered."""
    num_answers: int
    """Requests that were answered."""
    metrics: Mapping[str, float]
    """What to put among the episode's metrics, so far: `agent/requests`, `agent/trajectories`, `agent/restarted`."""

    def trajectories(self, reward: float, *, turn_discount: float = 1.0) -> tuple[Trajectory, ...]:
        """Return what the policy said, exact tokens, each answer of it trained on exactly once.

        A request whose prompt begins with all tokens of an earlier one and its answer goes on in that trajectory; any
        other begins one, as does every request with `Export.INDIVIDUAL`. Where several go on from one, that one stays
        with the last of them. The reward of a trajectory that ends n requests before the last one counts
        `turn_discount` to the power of n.
        """


@runtime_checkable
class AgentEndpoint(Protocol):
    """Role `endpoint`, contract 1.0: a server on loopback with OpenAI's and Anthropic's paths, a key for each session.

    Built by its factory as factory(config), one for a run, in the controller's event loop.
    """

    url: str
    """The base URL of OpenAI's clients, `http://127.0.0.1:PORT/v1`; Anthropic's take it without `/v1`."""

    async def start(self) -> None:
        """Listen on a free port of loopback. Idempotent."""

    def open(self, session: Session, limits: SessionLimits | None = None) -> AbstractContextManager[OpenSession]:
        """Open a session for as long as the block runs; its requests are answered by `session.generate`."""

    async def close(self) -> None:
        """End it; requests in flight are cancelled. Idempotent."""
