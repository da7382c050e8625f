"""An environment of OpenEnv in one file: guess a number. The run serves it, or uvicorn: `uvicorn guess_server:app`."""

from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """What the policy does."""

    number: int


class Hint(Observation):
    """What it is told."""

    hint: str


class Guessing(Environment[Guess, Hint, State]):
    """A number below 100, by the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        """Begin a game."""
        self._secret, self._state = (seed or 0) % 100, State(episode_id=episode_id)
        return Hint(hint="Guess a number from 0 to 99.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        """Take a guess."""
        self._state.step_count += 1
        if action.number == self._secret:
            return Hint(hint="Right.", done=True, reward=1.0)
        return Hint(hint="Higher." if action.number < self._secret else "Lower.", reward=-0.05)

    @property
    def state(self) -> State:
        """Return where the game is."""
        return self._state


app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=64)
