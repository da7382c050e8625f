"""An environment of the real library OpenEnv, served here and elsewhere, played against the endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.contract.errors import EpisodeFailed
from areal_environments import openenv
from areal_environments.testing.scripted import call, episode, episodes

pytestmark = pytest.mark.environments
GUESS = '''
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str


class Guessing(Environment):
    """Guess the seed's last digit."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self._secret, self._state = seed % 10, State()
        return Hint(hint=f"Guess a digit{more or ''}.")

    def step(self, action, timeout_s=None, **more):
        if action.number > 9:
            raise RuntimeError("the world ended")
        self._state.step_count += 1
        right = action.number == self._secret
        hint = "right" if right else "higher" if action.number < self._secret else "lower"
        return Hint(hint=hint, done=right, reward=1.0 if right else -0.25)

    @property
    def state(self):
        return self._state


app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=2)
'''
ROW = {"reset": {"seed": 7}}


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    path = tmp_path / f"guess_{abs(hash(request.node.name))}.py"
    path.write_text(GUESS)
    return f"{path}:app"


def test_an_episode_is_a_session_of_the_environment(server: str) -> None:
    """Text becomes actions, observations messages, rewards are summed; what the policy said is trained on."""
    config = openenv.OpenEnvConfig(
        server=server, action="number", observation="{hint}", instruction="A game.", pattern=r"(\d+)"
    )
    made, text = episode(openenv.workflow(config), ROW, ["is it 3", "now 7"])

    assert (
        text == "[user]A game.\n\nGuess a digit.<eos>[assistant]<is it 3<eos>>[user]higher<eos>[assistant]<now 7<eos>>"
    )
    assert made.trajectories[0].reward == 0.75
    assert (made.metrics["turns"], made.metrics["done"]) == (2.0, 1.0)


def test_sessions_do_not_mix_and_wait_for_a_place(server: str) -> None:
    """Five episodes at a server with two places, each with its own secret, last reward."""
    config = openenv.OpenEnvConfig(server=server, sessions=2, action="number", reward="last")
    cases = [({"reset": {"seed": seed}}, ["0", str(seed)]) for seed in range(1, 6)]

    assert [made.trajectories[0].reward for made, _ in episodes(openenv.workflow(config), cases)] == [1.0] * 5


def test_an_action_that_is_none_is_told_to_the_policy(server: str) -> None:
    """Also where the policy writes the whole action; the episode goes on."""
    config = openenv.OpenEnvConfig(server=server, action="", observation="{hint}")
    made, text = episode(openenv.workflow(config), ROW, ["what?", '{"digit": 7}', '{"number": 7}'])

    assert "[user]This is no JSON:" in text and "[user]This is no action:" in text
    assert (made.trajectories[0].reward, made.metrics["turns"]) == (1.0, 3.0)


def test_an_environment_that_fails_fails_the_episode(server: str) -> None:
    """So does a server that is full: neither is a reward of zero."""
    config = openenv.OpenEnvConfig(server=server, action="number", sessions=8)
    with pytest.raises(EpisodeFailed, match="refuses step") as caught:
        episode(openenv.workflow(config), ROW, ["77"])
    assert "the world ended" in str(caught.value.why)

    with pytest.raises(EpisodeFailed, match="CAPACITY_REACHED") as caught:
        episodes(openenv.workflow(config), [(ROW, ["1", "2", "7"])] * 4)
    assert "max_concurrent_envs" in str(caught.value.fix)


TOOLS = '''
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Counting(MCPEnvironment):
    """Count to the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.count = 0
        server = FastMCP("counting")

        @server.tool()
        def add(number: int) -> int:
            """Add to the count."""
            self.count += number
            return self.count

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **more):
        self.wanted = seed
        return Observation()

    def step(self, action, timeout_s=None, **more):
        return self._scored(super().step(action, timeout_s=timeout_s))

    async def step_async(self, action, timeout_s=None, **more):
        return self._scored(await super().step_async(action, timeout_s=timeout_s))

    def _scored(self, seen):
        if isinstance(seen, CallToolObservation):
            seen.done = self.count >= self.wanted
            seen.reward = float(self.count == self.wanted) if seen.done else 0.0
        return seen

    def _step_impl(self, action, timeout_s=None, **more):
        raise AssertionError(action)

    @property
    def state(self):
        return State()


app = create_fastapi_app(Counting, CallToolAction, CallToolObservation, max_concurrent_envs=4)
'''


def test_tools_of_an_environment_are_called(tmp_path: Path) -> None:
    """It lists them; a call is a step with a reward; what is wrong with one is told; it says when it ends."""
    (tmp_path / "counting_app.py").write_text(TOOLS)
    config = openenv.OpenEnvConfig(server=f"{tmp_path}/counting_app.py:app", tools=True, instruction="Count.")
    right = [call("add", number=3) + call("add", number="many"), call("minus"), call("add", number=4), "never"]
    wrong = [call("add", number=9)]
    cases = [(ROW, right), (ROW, wrong), (ROW, ["I do not."])]
    (one, text), (other, _), (none, said) = episodes(openenv.workflow(config), cases)

    assert "[tools]add <eos>[user]Count.<eos>[assistant]<" in text and "[tool]3<eos>[tool]" in text
    assert "there is no tool minus; there are add" in text and "number" in text and "never" not in text
    assert [each.trajectories[-1].reward for each in (one, other, none)] == [1.0, 0.0, 0.0]
    assert [each.metrics["done"] for each in (one, other, none)] == [1.0, 1.0, 0.0]
    assert said.endswith("[assistant]<I do not.<eos>>")


def test_an_environment_without_tools_fails_its_episodes(server: str) -> None:
    """With what to set."""
    config = openenv.OpenEnvConfig(server=server, tools=True)
    with pytest.raises(EpisodeFailed, match="lists no tools") as caught:
        episode(openenv.workflow(config), ROW, ["3"])
    assert "options.tools" in str(caught.value.fix)
