"""Resource servers of NeMo Gym: tools and verification over HTTP.

What the policy says is asked for as chats and told to the server in the form of the Responses API, which its rows have.

Knows: /seed_session, tools by their names, /verify; /reset and /step in their place; the cookie that is an episode.
Does not know: what any server is about; its library, which a server needs and a run does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
from attrs import field, frozen, validators

from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_environments.nemo_gym_rows import parameters
from areal_environments.played import PlayedConfig, PlayedWorkflow, Row
from areal_environments.policy import conversation
from areal_environments.responses import Item, answered, chat_messages, chat_tools, output_items, response
from areal_environments.serving import Served, check_server


@frozen(kw_only=True)
class NemoGymConfig(PlayedConfig):
    """Options of the workflow `nemo_gym`.

    Example: NemoGymConfig(server="http://127.0.0.1:8000", max_steps=8)
    """

    server: str = field(validator=validators.matches_re(r"https?://.+|.+:[A-Za-z_]\w*"))
    """The resource server's URL; or FILE.py:APP or MODULE:APP, an application that the run then serves itself."""
    agent: str = field(default="simple", validator=validators.in_(("simple", "gymnasium")))
    """Which of NeMo Gym's agents the server is made for: `simple` calls tools and has the session verified,
    `gymnasium` steps the environment with each answer."""
    max_steps: int = field(default=16, validator=validators.ge(1))
    """Answers of an episode at most."""
    request_timeout_s: float = field(default=120.0, validator=validators.gt(0.0))
    """How long the server may take for one request."""

    def __attrs_post_init__(self) -> None:
        """Refuse an application that is not there, while a run is planned."""
        check_server(self.server)


def workflow(config: NemoGymConfig) -> PlayedWorkflow:
    """Return the workflow `nemo_gym`: an episode is one session of the resource server."""
    served = Served(config.server)

    async def play(row: Row, base_url: str, api_key: str) -> RewardResult:
        address = await served.address()
        jar, limit = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(total=config.request_timeout_s)
        async with aiohttp.ClientSession(
            headers=dict(address.headers), cookie_jar=jar, timeout=limit, trust_env=False
        ) as http:
            played = _played if config.agent == "simple" else _stepped
            return await played(Server(http, address.url), row, config.max_steps, base_url, api_key)

    return PlayedWorkflow(config, play, close=served.close)


async def _played(server: Server, row: Row, max_steps: int, base_url: str, api_key: str) -> RewardResult:
    """Play one episode: calls of tools, then the verification.

    Raises:
        DatasetError: the row is none of NeMo Gym's.
        EpisodeFailed: the server cannot be reached, or does not seed or verify the session.
    """
    given = parameters(row)
    await server.told("/seed_session", row)
    tools = chat_tools(given.get("tools") or ())
    names = {each["function"]["name"] for each in tools}
    said: list[Item] = []
    async with conversation(base_url, api_key, tools) as policy:
        policy.messages += chat_messages(given["input"])
        while policy.num_answers < max_steps:
            message = await policy.answer()
            if message is None:
                break
            items = output_items(message)
            said += items
            calls = [item for item in items if item["type"] == "function_call"]
            for call in calls:
                result = await server.called(call, names)
                said.append(answered(call, result))
                policy.say("tool", result, tool_call_id=call["call_id"])
            if not calls:
                break
    verified = await server.told("/verify", {**row, "response": response(said, given)})
    parts = {name: value for name, value in verified.items() if name not in row and name not in ("reward", "response")}
    return RewardResult(value=_reward(verified, "/verify"), components=_numbers(parts))


async def _stepped(server: Server, row: Row, max_steps: int, base_url: str, api_key: str) -> RewardResult:
    """Play one episode: each answer is a step, and what is observed the next message; rewards are summed.

    Raises:
        DatasetError: the row is none of NeMo Gym's.
        EpisodeFailed: the server cannot be reached, or does not reset or step.
    """
    given = parameters(row)
    seen = await server.told("/reset", row)
    value = 0.0
    async with conversation(base_url, api_key, chat_tools(given.get("tools") or ())) as policy:
        policy.messages += chat_messages(given["input"])
        if observed := seen.get("observation"):
            policy.say("user", observed)
        while policy.num_answers < max_steps:
            message = await policy.answer()
            if message is None:
                break
            seen = await server.told("/step", {**row, "response": response(output_items(message), given)})
            value += _reward(seen, "/step")
            if seen.get("terminated") or seen.get("truncated"):
                break
            for each in (seen.get("info") or {}).get("tool_outputs", ()):
                policy.say("tool", each["output"], tool_call_id=each["call_id"])
            if observed := seen.get("observation"):
                policy.say("user", observed)
    told = {**(seen.get("info") or {}), "terminated": bool(seen.get("terminated")), "steps": policy.num_answers}
    return RewardResult(value=value, components=_numbers(told))


def _reward(told: Mapping[str, Any], path: str) -> float:  # Any: JSON
    reward = told.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EpisodeFailed(f"{path} gave the reward {reward!r}", why="a reward is a finite number")
    return float(reward)


def _numbers(told: Mapping[str, object]) -> dict[str, float]:
    """Return what else is told and is a finite number: the metrics."""
    return {name: float(part) for name, part in told.items() if isinstance(part, int | float) and math.isfinite(part)}


@frozen
class Server:
    """One session of a resource server."""

    http: aiohttp.ClientSession
    url: str

    async def told(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
        """Return what it answers; raises EpisodeFailed unless that is a JSON object."""
        status, text = await self._asked(path, body)
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if status != 200 or not isinstance(told, dict):
            raise EpisodeFailed(f"the resource server answered {status} to {path}", why=text[:600])
        return told

    async def called(self, call: Item, names: set[str]) -> str:
        """Return what a tool answers, whatever its status: the policy reads it. Only the row's tools can be called."""
        if call["name"] not in names:
            return json.dumps({"error": f"there is no tool {call['name']}; there are {', '.join(sorted(names))}"})
        try:
            arguments = json.loads(call["arguments"] or "{}")
        except ValueError as error:
            return json.dumps({"error": f"the arguments are no JSON: {error}"})
        return (await self._asked(f"/{call['name']}", arguments))[1]

    async def _asked(self, path: str, body: object) -> tuple[int, str]:
        try:
            async with self.http.post(f"{self.url}{path}", json=body) as reply:
                return reply.status, await reply.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EpisodeFailed(
                f"the resource server did not answer {path}",
                why=f"{type(error).__name__}: {error}",
                fix="start it, or correct rollout.workflow.options.server; raise request_timeout_s if it is slow",
            ) from error
