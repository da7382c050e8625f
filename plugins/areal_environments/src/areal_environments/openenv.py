"""Environments of OpenEnv: what the policy says becomes an action, what is observed the next message.

The server is spoken to by its own protocol over a WebSocket, one connection for each episode, so the library is needed
only where an environment is served.

Knows: reset, step, actions and observations as JSON.
Does not know: what any environment is about.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from attrs import Factory, define, field, frozen, validators

from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_environments.played import PlayedConfig, PlayedWorkflow, Row
from areal_environments.policy import conversation
from areal_environments.serving import Address, Served, check_server
from areal_tasks.datasets.rows import LazyRows
from areal_tasks.datasets.seeds import SplitConfig

Json = dict[str, Any]  # Any: JSON
_NAMED = re.compile(r"\{(\w+)\}")
_INVALID = "VALIDATION_ERROR"
"""The server's code for an action that is none: the policy is told, and the episode goes on."""


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
        async with (
            self._places,
            _session(address, config.step_timeout_s) as session,
            conversation(base_url, api_key) as policy,
        ):
            seen = await session.told("reset", dict(row.get("reset") or {}))
            rewards, turns = [seen.get("reward")], 0
            start = [_filled(config.instruction, seen)] if config.instruction else []
            policy.say("user", "\n\n".join([*start, self._message(seen)]))
            while not seen.get("done") and turns < config.max_turns:
                answer = await policy.answer()
                if answer is None:
                    break
                turns += 1
                seen = await self._stepped(session, answer.get("content") or "")
                rewards.append(seen.get("reward"))
                policy.say("user", seen["refused"] if "refused" in seen else self._message(seen))
        told = [float(reward) for reward in rewards if reward is not None]
        value = sum(told) if self.config.reward == "sum" else (told or [0.0])[-1]
        return RewardResult(value=value, components={"turns": float(turns), "done": float(bool(seen.get("done")))})

    async def close(self) -> None:
        """End the server, if it is here. Idempotent."""
        await self._served.close()

    async def _stepped(self, session: _Session, text: str) -> Json:
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

    def _message(self, seen: Json) -> str:
        return _filled(self.config.observation, seen) if self.config.observation else json.dumps(seen["observation"])


def _filled(template: str, seen: Json) -> str:
    observed = seen["observation"]
    return _NAMED.sub(lambda found: str(observed.get(found[1], found[0])), template)


@frozen
class _Session:
    """One connection, which is one instance of the environment."""

    socket: aiohttp.ClientWebSocketResponse
    timeout_s: float

    async def told(self, kind: str, data: Json) -> Json:
        """Return what the server answers: `observation`, `reward`, `done`; or `refused`, why the action is none."""
        await self.socket.send_json({"type": kind, "data": data})
        try:
            answer = await self.socket.receive_json(timeout=self.timeout_s)
        except (TypeError, TimeoutError) as error:  # aiohttp's TypeError: a connection closed, no text came
            raise EpisodeFailed(
                f"the environment gave no answer to {kind}",
                why=f"{type(error).__name__}: {error}",
                fix="look at its log; raise step_timeout_s if it is slow",
            ) from error
        told: Json = answer.get("data") or {}
        if answer.get("type") == "observation":
            return told
        if kind == "step" and told.get("code") == _INVALID:
            return {"refused": f"This is no action: {json.dumps(told.get('errors'), default=str)[:500]}"}
        full = told.get("code") == "CAPACITY_REACHED"
        raise EpisodeFailed(
            f"the environment refuses {kind}",
            why=f"{told.get('code')}: {told.get('message')}",
            fix="lower rollout.workflow.options.sessions, or raise the server's max_concurrent_envs" if full else "",
        )


@asynccontextmanager
async def _session(address: Address, timeout_s: float) -> AsyncIterator[_Session]:
    url, headers = f"{address.url}/ws", dict(address.headers)
    async with aiohttp.ClientSession(trust_env=False) as http:
        try:
            socket = await http.ws_connect(url, headers=headers, max_msg_size=0)
        except aiohttp.ClientError as error:
            why, fix = f"{type(error).__name__}: {error}", "start it, or correct rollout.workflow.options.server"
            raise EpisodeFailed(f"no environment at {url}", why=why, fix=fix) from error
        async with socket:
            yield _Session(socket, timeout_s)
