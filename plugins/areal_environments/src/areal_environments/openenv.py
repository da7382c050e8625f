"""Environments of OpenEnv: what the policy says becomes an action, what is observed the next message.

The library is needed only where an environment is served.

Knows: reset, step, actions and observations as JSON; rewards of steps.
Does not know: the protocol (`openenv_session`), tools (`openenv_tools`), what any environment is about.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import Factory, define, field, frozen, validators

from areal_core.contract.workflow import RewardResult
from areal_environments.openenv_session import Json, Session, opened
from areal_environments.openenv_tools import call_tool, list_tools
from areal_environments.played import PlayedConfig, PlayedWorkflow, Row
from areal_environments.policy import Message, Policy, conversation
from areal_environments.serving import Served, check_server
from areal_tasks.datasets.rows import LazyRows
from areal_tasks.datasets.seeds import SplitConfig

_NAMED = re.compile(r"\{(\w+)\}")


@frozen(kw_only=True)
class OpenEnvRows(SplitConfig):
    """Options of the data set `openenv`: rows are what `reset` is called with.

    Example: OpenEnvRows(size=2000, reset={"difficulty": "hard"})
    """

    argument: str = "seed"
    """What numbers the rows: `seed`, other ones for each split; or another argument of `reset`, such as `index` of an
    environment with tasks of its own, which counts from 0."""
    reset: Mapping[str, Any] = Factory(dict)  # Any: the environment's own
    """Further arguments of `reset`, the same for all rows, for example {"split": "train"}."""


def rows(config: OpenEnvRows) -> LazyRows:
    """Return rows {"reset": {"seed": ...}}: the data set `openenv`."""
    first = config.first if config.argument == "seed" else 0
    return LazyRows(config.size, lambda number: {"reset": {**config.reset, config.argument: first + number}})


@frozen(kw_only=True)
class OpenEnvConfig(PlayedConfig):
    """Options of the workflow `openenv`.

    Example: OpenEnvConfig(server="http://127.0.0.1:8000", action="guess", observation="{hint}", reward="last")
    """

    server: str = field(validator=validators.matches_re(r"https?://.+|.+:[A-Za-z_]\w*"))
    """Its URL; or FILE.py:APP or MODULE:APP, an application that the run then serves itself."""
    sessions: int = field(default=8, validator=validators.ge(1))
    """Episodes at the server at once; not more than its own `max_concurrent_envs`."""
    instruction: str = ""
    """The first message, before what `reset` observes; {name} is a field of that observation."""
    observation: str = ""
    """The message for an observation; {name} is a field of it. Empty: the observation as JSON."""
    action: str = "message"
    """The field of the action that gets the policy's text. Empty: the text is the whole action, as a JSON object."""
    fixed: Mapping[str, Any] = Factory(dict)  # Any: the environment's own
    """Other fields of the action, the same in every step."""
    pattern: str = field(default="", validator=lambda _, __, value: re.compile(value) and None)
    """A regular expression: the first group of its last match in the text stands for the text. Empty takes all."""
    tools: bool = False
    """Whether the environment is one of tools (`MCPEnvironment`): the policy calls them, until it calls none."""
    reward: str = field(default="sum", validator=validators.in_(("sum", "last")))
    """What the episode is worth: the sum of the rewards of its steps, or the last one that was told."""
    max_turns: int = field(default=16, validator=validators.ge(1))
    """Steps of an episode at most."""
    step_timeout_s: float = field(default=60.0, validator=validators.gt(0.0))
    """How long the server may take for one step."""

    def __attrs_post_init__(self) -> None:
        """Refuse an application that is not there, while a run is planned."""
        check_server(self.server)


def workflow(config: OpenEnvConfig) -> PlayedWorkflow:
    """Return the workflow `openenv`: an episode is one session of the environment."""
    player = Player(config)
    return PlayedWorkflow(config, player.play, close=player.close)


@define(eq=False)
class Player:
    """Plays the episodes of a run."""

    config: OpenEnvConfig
    _served: Served = field(init=False)
    _places: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._served = Served(self.config.server)
        self._places = asyncio.Semaphore(self.config.sessions)

    async def play(self, row: Row, base_url: str, api_key: str) -> RewardResult:
        """Reset the environment with the row's arguments and step it until it is done.

        Raises:
            EpisodeFailed: the server cannot be reached, is full, or failed.
        """
        address, config = await self._served.address(), self.config
        async with self._places, opened(address, config.step_timeout_s) as session:
            seen = await session.told("reset", dict(row.get("reset") or {}))
            rewards = [seen.get("reward")]
            tools = await list_tools(session) if config.tools else ()
            async with conversation(base_url, api_key, tools) as policy:
                start = [_filled(config.instruction, seen)] if config.instruction else []
                policy.say("user", "\n\n".join([*start, *self._messages(seen)]))
                while not seen.get("done") and policy.num_answers < config.max_turns:
                    answer = await policy.answer()
                    if answer is None:
                        break
                    steps = await self._stepped(session, policy, answer)
                    if not steps:
                        break
                    rewards += [step.get("reward") for step in steps]
                    seen = steps[-1]
        told = [float(reward) for reward in rewards if reward is not None]
        value = sum(told) if config.reward == "sum" else (told or [0.0])[-1]
        turns = float(policy.num_answers)
        return RewardResult(value=value, components={"turns": turns, "done": float(bool(seen.get("done")))})

    async def close(self) -> None:
        """End the server, if it is here. Idempotent."""
        await self._served.close()

    async def _stepped(self, session: Session, policy: Policy, answer: Message) -> list[Json]:
        """Take the steps that an answer asks for, and tell the policy what came of them."""
        if not self.config.tools:
            seen = await self._acted(session, answer.get("content") or "")
            policy.say("user", seen["refused"] if "refused" in seen else "\n\n".join(self._messages(seen)))
            return [seen]
        steps: list[Json] = []
        for call in answer.get("tool_calls") or ():
            seen, said = await call_tool(session, call["function"], policy.tools)
            steps.append(seen)
            policy.say("tool", said, tool_call_id=call["id"])
            if seen.get("done"):
                break
        return steps

    async def _acted(self, session: Session, text: str) -> Json:
        found = re.findall(self.config.pattern, text, re.DOTALL) if self.config.pattern else []
        if found:
            text = found[-1] if isinstance(found[-1], str) else found[-1][0]
        if self.config.action:
            return await session.told("step", {**self.config.fixed, self.config.action: text.strip()})
        try:
            action = json.loads(text)
        except ValueError as error:
            return {"refused": f"This is no JSON: {error}"}
        if not isinstance(action, dict):
            return {"refused": "This is no JSON object."}
        return await session.told("step", {**self.config.fixed, **action})

    def _messages(self, seen: Json) -> list[str]:
        if self.config.observation:
            return [_filled(self.config.observation, seen)]
        told = {name: value for name, value in seen["observation"].items() if name != "metadata" or value}
        return [json.dumps(told)] if told or not self.config.tools else []


def _filled(template: str, seen: Json) -> str:
    observed = seen["observation"]
    return _NAMED.sub(lambda found: str(observed.get(found[1], found[0])), template)
