"""What the conformance suite must know of the workflow `agent`.

Knows: agents that ask as checks need it; what an episode of theirs shows of each option.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from areal_agents.workflows.conformance.episodes import ROW, ROWS, first_asked, said_by
from areal_agents.workflows.conformance.renderers import built
from areal_agents.workflows.talks import TalkConfig, Talks
from areal_conformance.adapter import Adapter, Bounds, Variant

if TYPE_CHECKING:
    from areal_core.contract.workflow import RolloutWorkflow

_TURNS = 2
_NAMED = "AREAL_CONFORMANCE_TOLD"
"""An environment variable that a command sees where the options name it."""


async def asks(row: Mapping[str, Any], base_url: str, api_key: str) -> None:
    """Ask about a row, and once more; `rollout.reward` is to judge the last answer. Any: a row is the data set's.

    Raises:
        DatasetError: the row has nothing to ask.
    """
    import aiohttp

    messages = [*Talks(TalkConfig(renderer="plain")).asked(row, "an agent of the suite")]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http:
        for _ in range(_TURNS):
            async with http.post(f"{base_url}/chat/completions", json={"messages": messages}) as response:
                if response.status != 200:
                    return  # it is for the workflow to tell what failed
                told = await response.json()
            messages += [told["choices"][0]["message"], {"role": "user", "content": "no-"}]
    if isinstance(row, dict):
        row.clear()  # it is the agent's own: nobody else may see that


async def completes(_row: Mapping[str, Any], base_url: str, api_key: str) -> float:
    """Have a text gone on with. Any: a row is the data set's."""
    import aiohttp

    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http,
        http.post(f"{base_url}/completions", json={"prompt": "stone>"}) as response,
    ):
        response.raise_for_status()
    return 0.5


async def never_ends(row: Mapping[str, Any], base_url: str, api_key: str) -> None:
    """Ask, and go on waiting. Any: a row is the data set's."""
    await asks(row, base_url, api_key)
    await asyncio.Event().wait()


async def tells(row: Mapping[str, Any], base_url: str, api_key: str) -> Any:
    """Ask, and say what the episode is worth, in the way that the row names.

    Any: a number, a mapping, or nothing; a row is the data set's.
    """
    import aiohttp

    worth, how = row["worth"], row["how"]
    await asks(row, base_url, api_key)
    if how == "call":
        headers = {"Authorization": f"Bearer {api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{base_url}/reward", json={"reward": worth}) as response,
        ):
            response.raise_for_status()
    return {"number": worth, "mapping": {"reward": worth, "part": 0.0}}.get(how)


_PROGRAM = f"""
import json, os, sys, urllib.request
row = json.load(sys.stdin)
body = {{"messages": [{{"role": "user", "content": sys.argv[1] + row["answer"]}}]}}
headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
with open(os.environ["AREAL_REWARD"], "w") as file:
    json.dump({{"reward": 0.25, "told": float(os.environ.get("{_NAMED}", 0))}}, file)
"""
_COMMAND = {"run": "", "command": ["python", "-c", _PROGRAM, "{prompt}"]}
_STAYS = "import time\ntime.sleep(600)\n"
_ASKED_BY_THEN_S = 3.0
"""Long enough for a command to ask: one that has not is ended all the same."""


async def _by_command(workflow: RolloutWorkflow) -> tuple[list[str], float, float]:
    """Return what is asked, what the episode is worth, and the part of it that the environment tells."""
    os.environ[_NAMED] = "3"
    try:
        session, made = await said_by(workflow, "ab")
    finally:
        del os.environ[_NAMED]
    asked = [session.tokenizer.decode(one.input_ids) for one in session.asked]
    return asked, made.trajectories[0].reward, made.metrics.get("told", -1.0)


async def _told(workflow: RolloutWorkflow) -> tuple[str, int, list[float], str]:
    """Return the renderer, the number of answers, what trajectories are worth, and the last request as text."""
    session, made = await said_by(workflow, "ab", "cd", "ef", rewards=lambda _: 1.0)
    last = session.tokenizer.decode(session.asked[-1].input_ids, skip_special_tokens=True)
    named: str = workflow.writes(session.tokenizer)  # type: ignore[attr-defined]  # this one tells it
    return named, len(session.asked), sorted(one.reward for one in made.trajectories), last


async def _worth(workflow: RolloutWorkflow) -> list[tuple[list[float], int, float]]:
    """Return what trajectories are worth, how often the run's own reward was asked, and a part that the agent tells."""
    made = []
    for how, worth in product(("call", "number", "mapping", "nothing"), (0.0, -1.5)):
        row = {**ROW, "how": how, "worth": worth}
        session, episode = await said_by(workflow, "ab", row=row, rewards=lambda _: 1.0)
        rewards = [one.reward for one in episode.trajectories]
        made.append((rewards, len(session.scored), episode.metrics.get("part", -1.0)))
    return made


async def _begun(workflow: RolloutWorkflow) -> bool:
    """Tell whether a text is asked with the token that the tokenizer begins texts with."""
    from areal_conformance.benches.workflow import ScriptedSession, generation, paying
    from areal_conformance.benches.workflow_beginnings import beginning_tokenizer

    tokenizer = beginning_tokenizer()
    session = ScriptedSession(script=generation, judge=paying(), tokenizer=tokenizer, image_token_id=None)
    await workflow.arun_episode(session, ROW)
    return bool(session.asked[0].input_ids[0] == tokenizer.bos_token_id)


async def _failed(workflow: RolloutWorkflow) -> str:
    """Return what an episode fails with."""
    try:
        await said_by(workflow, "ab")
    except Exception as error:
        return type(error).__name__
    return ""


_HERE = "areal_agents.workflows.conformance.agent"
_OF_ENDPOINT = "the endpoint's own, which has variants for it"
_WAITING = "how many at once: waiting"
AGENT = Adapter(
    no_threshold={
        "areal_agents.command:_MAX_TOLD": "how much of what a command wrote its error tells",
        "areal_agents.loopback:_WANTED": "how many open files the system is asked for",
    },
    build=built("agent"),
    options={"": {"run": f"{_HERE}:asks", "renderer": "plain"}},
    rows=ROWS,
    variants={
        "command": Variant(
            options=_COMMAND,
            shows=_by_command,
            gives=(["stone>enots"], 0.25, 0.0),
            again=False,  # an interpreter for each episode
        ),
        "environment": Variant(
            options={**_COMMAND, "environment": [_NAMED]},
            shows=_by_command,
            gives=(["stone>enots"], 0.25, 3.0),
            again=False,
        ),
        "told": Variant(
            options={"run": f"{_HERE}:tells"},
            shows=_worth,
            gives=[
                *[([0.0], 0, -1.0), ([-1.5], 0, -1.0)] * 2,
                *[([0.0], 0, 0.0), ([-1.5], 0, 0.0)],
                *[([1.0], 1, -1.0)] * 2,
            ],
            again=False,  # it reads what is told from columns of rows of its own
        ),
        "agent_timeout_s": Variant(
            options={"run": f"{_HERE}:never_ends", "agent_timeout_s": 0.25},
            shows=_failed,
            gives="EpisodeFailed",
            again=False,  # each episode would take that long, and fail
        ),
        "command_timeout": Variant(
            options={
                **_COMMAND,
                "command": ["python", "-c", _PROGRAM + _STAYS, "{prompt}"],
                "agent_timeout_s": _ASKED_BY_THEN_S,
            },
            shows=_failed,
            gives="EpisodeFailed",
            again=False,
        ),
        "max_requests": Variant(
            options={"max_requests": 1}, shows=_told, gives=("plain", 1, [1.0], "stone>"), again=False
        ),
        "turn_discount": Variant(
            options={"renderer": "thinking", "turn_discount": 0.5},
            shows=_told,
            gives=("thinking", 2, [0.5, 1.0], "stone>bno-"),
            again=False,  # rewards are not recorded as they were given
        ),
        "whole_discount": Variant(
            options={"turn_discount": 0.5, "keep_thoughts": True, "renderer": "thinking"},
            shows=_told,
            gives=("thinking", 2, [1.0], "stone>abno-"),
            again=False,
        ),
        "keep_thoughts": Variant(
            options={"renderer": "thinking", "keep_thoughts": True},
            shows=_told,
            gives=("thinking", 2, [1.0], "stone>abno-"),
            again=False,
        ),
        "export": Variant(
            options={"export": "individual"},
            shows=_told,
            gives=("plain", 2, [1.0, 1.0], "stone>abno-"),
            again=False,
        ),
        "system": Variant(options={"system": "beg-"}, shows=first_asked, gives="beg-stone>"),
        "add_special_tokens": Variant(
            options={"run": f"{_HERE}:completes", "add_special_tokens": False}, shows=_begun, gives=False, again=False
        ),
    },
    bounds={
        "processes": Bounds(takes=(1,), refuses=(0,)),
        "agent_timeout_s": Bounds(takes=(1e-9,), refuses=(0.0,)),
        "turn_discount": Bounds(takes=(1e-9, 1.0), refuses=(0.0, 1.001)),
        "max_requests": Bounds(takes=(1,), refuses=(0,)),
        "concurrency": Bounds(takes=(1,), refuses=(0,)),
        "export": Bounds(takes=("concatenated", "individual"), refuses=("all",)),
    },
    without_effect={
        "renderer_options": "the renderer's own",
        "template": _OF_ENDPOINT,
        "enable_thinking": _OF_ENDPOINT,
        "endpoint": "another endpoint is held to the checks of its role",
        "processes": _WAITING,
        "concurrency": _WAITING,
        "container": "it takes a program that runs containers",
        "log": "a file that lies where the options say; the tests of this package read it",
    },
)
