"""What an agent says through OpenAI's own client is trained on token by token, and what goes wrong is told."""

from __future__ import annotations

import asyncio
import resource
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import openai
import pytest

from areal_agents.config import AgentConfig
from areal_agents.source import agent_function
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.errors import ConfigError, EpisodeFailed, NoReplica, PromptTooLong
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_core.plugins.registry import Registry
from areal_local.rewards.child import Scorer

from .speaking import TOKENIZER, Speaking, client, close_clients, episodes, text_of

END = TOKENIZER.eos_token


async def one(row: dict[str, Any], base_url: str, api_key: str) -> float:
    answer = await client(base_url, api_key).completions.create(model="policy", prompt=row["prompt"])
    assert answer.choices[0].text == "xa" and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens == 3 + 3
    return 0.5


def test_an_answer_is_trained_on_as_it_was_generated() -> None:
    """Tokens, log-probs and version are the engine's, the reward is what the agent returned."""
    (made,) = episodes(one, session := Speaking())

    (trajectory,) = made.trajectories
    assert text_of(made) == (f"ab>xa{END}", f"xa{END}")
    assert trajectory.reward == 0.5 and trajectory.versions[-3:].tolist() == [3, 3, 3]
    assert trajectory.logprobs[-3:].tolist() == pytest.approx([-0.1] * 3)
    assert made.metrics == {"agent/requests": 1.0, "agent/trajectories": 1.0, "agent/restarted": 0.0}
    assert session.asked[0][1].max_new_tokens == 8


def test_a_conversation_that_grows_is_one_trajectory() -> None:
    """Every answer is on the mask, everything between them is not; nothing is tokenized again."""

    async def talk(row: dict[str, Any], base_url: str, api_key: str) -> float:
        messages: Any = [{"role": "user", "content": "q"}]
        for turn in "rst":
            told = await client(base_url, api_key).chat.completions.create(model="policy", messages=messages)
            answer = told.choices[0].message
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": turn}]
        return 1.0

    (made,) = episodes(talk, Speaking())

    whole = f"u>q{END}a>xa{END}u>r{END}a>xb{END}u>s{END}a>xc{END}"
    assert text_of(made) == (whole, f"xa{END}xb{END}xc{END}")
    assert made.metrics == {"agent/requests": 3.0, "agent/trajectories": 1.0, "agent/restarted": 0.0}


def test_a_history_that_was_changed_begins_a_trajectory() -> None:
    """It is trained on as it was asked, less for what ended earlier; nothing is pretended to have been said."""

    async def edits(row: dict[str, Any], base_url: str, api_key: str) -> float:
        ask = client(base_url, api_key).chat.completions.create
        await ask(model="policy", messages=[{"role": "user", "content": "q"}])
        history: Any = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no"}]
        await ask(model="policy", messages=[*history, {"role": "user", "content": "r"}])
        return 1.0

    (made,) = episodes(edits, Speaking(), turn_discount=0.5)

    assert text_of(made, 0) == (f"u>q{END}a>xa{END}", f"xa{END}")
    assert text_of(made, 1) == (f"u>q{END}a>no{END}u>r{END}a>xb{END}", f"xb{END}")
    assert [trajectory.reward for trajectory in made.trajectories] == [0.5, 1.0]
    assert made.metrics["agent/trajectories"] == 2.0
    assert made.metrics["agent/restarted"] == made.metrics["agent/restarted/edited"] == 1.0


def test_all_that_clients_ask_for_is_answered() -> None:
    """Models, several answers, log-probs, streams of both kinds, tools, limits and stops."""
    seen: dict[str, Any] = {}

    async def asks(row: dict[str, Any], base_url: str, api_key: str) -> float:
        api: Any = client(base_url, api_key)
        seen["models"] = [model.id async for model in api.models.list()]
        several = await api.completions.create(
            model="policy", prompt=[5, 6, 7], n=3, logprobs=1, max_tokens=2, stop="z", temperature=0.3
        )
        seen["several"] = [choice.text for choice in several.choices]
        seen["logprobs"] = several.choices[1].logprobs.token_logprobs
        messages = [{"role": "user", "content": "q"}]
        usage = {"include_usage": True}
        stream = await api.chat.completions.create(model="policy", messages=messages, stream=True, stream_options=usage)
        chunks = [chunk async for chunk in stream]
        seen["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        seen["ended"] = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
        seen["used"] = chunks[-1].usage.completion_tokens
        texts = await api.completions.create(model="policy", prompt="ab>", stream=True)
        seen["texts"] = "".join([chunk.choices[0].text async for chunk in texts])
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        called = await api.chat.completions.create(model="policy", messages=messages, tools=tools, logprobs=True)
        function = called.choices[0].message.tool_calls[0].function
        seen["call"] = (function.name, function.arguments, called.choices[0].finish_reason)
        seen["chat logprobs"] = [each.token for each in called.choices[0].logprobs.content]
        return 0.0

    (made,) = episodes(asks, session := Speaking())

    assert seen.pop("logprobs") == pytest.approx([-0.2] * 3)
    assert seen == {
        "models": ["policy"],
        "several": ["xa", "xb", "xc"],
        "streamed": "xd",
        "ended": "stop",
        "used": 3,
        "texts": "xe",
        "call": ("add", '{"a": 1}', "tool_calls"),
        "chat logprobs": ["x", "f", END],
    }
    first = session.asked[0][1]
    assert (first.max_new_tokens, first.stop, first.temperature) == (2, ("z",), 1.0), "how is drawn is the run's"
    assert len(made.trajectories) == 6


def test_two_hundred_episodes_at_once_have_each_their_own() -> None:
    """No answer is recorded for somebody else, and every key is another."""
    keys: list[str] = []

    def twice(row: dict[str, Any], base_url: str, api_key: str) -> float:
        keys.append(api_key)
        api = shared.with_options(base_url=base_url, api_key=api_key)
        first = api.completions.create(model="policy", prompt="ab>")
        second = api.completions.create(model="policy", prompt=f"cd>{first.choices[0].text}")
        return float(ord(second.choices[0].text[0]))

    letters = [chr(ord("a") + number % 26) for number in range(200)]
    with openai.OpenAI(base_url="http://unset", api_key="unset", max_retries=0) as shared:
        made = episodes(twice, *(Speaking(letter) for letter in letters))

    for letter, episode in zip(letters, made, strict=True):
        assert {trajectory.reward for trajectory in episode.trajectories} == {float(ord(letter))}
        assert [text_of(episode, number)[1] for number in (0, 1)] == [f"{letter}a{END}", f"{letter}b{END}"]
    assert len(set(keys)) == 200


def test_a_key_opens_nothing_but_its_episode() -> None:
    """Neither another key nor its own, when the episode is over."""
    old: list[tuple[str, str]] = []

    async def nosy(row: dict[str, Any], base_url: str, api_key: str) -> float:
        for url, key in [(base_url, "areal-guess"), *old]:
            with pytest.raises(openai.AuthenticationError, match="no session has this key"):
                await client(url, key).completions.create(model="policy", prompt="ab>")
        old.append((base_url, api_key))
        return await one(row, base_url, api_key)

    async def both() -> None:
        workflow = AgentWorkflow(AgentConfig(run="json:loads"), run=nosy)
        for _ in range(2):
            await workflow.arun_episode(Speaking(), {"prompt": "ab>"})
        await close_clients()
        await workflow.close()

    asyncio.run(both())
    assert len(old) == 2


@pytest.mark.parametrize(
    ("fails", "asked", "told"),
    [
        ({0: PromptTooLong("the prompt has 99 tokens")}, {"prompt": "ab>"}, "99 tokens"),
        ({}, {"prompt": "ab>", "n": 99}, "n: "),
        ({}, {"prompt": ""}, "prompt"),
        ({}, {"prompt": "ab>", "max_tokens": 0}, "max_tokens: "),
    ],
)
def test_what_is_wrong_with_a_request_is_told_to_the_agent(fails: Any, asked: Any, told: str) -> None:
    """In OpenAI's words for it; the agent may go on."""

    async def careful(row: dict[str, Any], base_url: str, api_key: str) -> float:
        api: Any = client(base_url, api_key)
        with pytest.raises(openai.BadRequestError) as caught:
            await api.completions.create(model="policy", **asked)
        assert told in str(caught.value)
        await api.completions.create(model="policy", prompt="ab>")
        return 1.0

    (made,) = episodes(careful, Speaking(fails=fails))

    assert len(made.trajectories) == 1


def test_more_requests_than_an_episode_may_make_are_refused() -> None:
    async def greedy(row: dict[str, Any], base_url: str, api_key: str) -> float:
        await one(row, base_url, api_key)
        with pytest.raises(openai.RateLimitError, match="max_requests"):
            await client(base_url, api_key).completions.create(model="policy", prompt="ab>")
        return 1.0

    (made,) = episodes(greedy, Speaking(), max_requests=1)

    assert len(made.trajectories) == 1


def test_an_episode_fails_with_the_fleet_whatever_its_agent_says() -> None:
    """A reward for answers that were never given would be a lie."""

    async def stubborn(row: dict[str, Any], base_url: str, api_key: str) -> float:
        await one(row, base_url, api_key)
        with pytest.raises(openai.InternalServerError):
            await client(base_url, api_key).completions.create(model="policy", prompt="ab>")
        return 1.0

    with pytest.raises(NoReplica):
        episodes(stubborn, Speaking(fails={1: NoReplica("every replica is out of service")}))


def test_an_agent_whose_only_request_was_refused_fails_with_what_was_wrong_with_it() -> None:
    """It asked, so it is not told to ask; what it was told is what its user is told."""

    async def resigned(row: dict[str, Any], base_url: str, api_key: str) -> float:
        with pytest.raises(openai.BadRequestError):
            await client(base_url, api_key).completions.create(model="policy", prompt="ab>")
        return 1.0

    with pytest.raises(PromptTooLong, match="99 tokens"):
        episodes(resigned, Speaking(fails={0: PromptTooLong("the prompt has 99 tokens")}))


def by_call(row: dict[str, Any], base_url: str, api_key: str) -> None:
    """An agent that is no coroutine, with the client that is none, and a reward by call."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as api:
        api.completions.create(model="policy", prompt="ab>")
        api.post("/reward", body={"reward": 0.75}, cast_to=object)


async def judged(row: dict[str, Any], base_url: str, api_key: str) -> None:
    await one(row, base_url, api_key)


async def detailed(row: dict[str, Any], base_url: str, api_key: str) -> RewardResult:
    await one(row, base_url, api_key)
    return RewardResult(value=-1.0, components={"form": 0.5})


async def averaged(row: dict[str, Any], base_url: str, api_key: str) -> Any:
    """An agent whose reward is a number of numpy's."""
    await one(row, base_url, api_key)
    return {"reward": np.float32(0.5), "tries": np.int64(3)}


@pytest.mark.parametrize(
    ("agent", "reward", "part"),
    [(by_call, 0.75, None), (judged, 0.25, "judged"), (detailed, -1.0, "form"), (averaged, 0.5, "tries")],
)
def test_a_reward_is_returned_told_or_judged(agent: Any, reward: float, part: str | None) -> None:
    """By the value, by a call, or by the run's own reward function, which is shown the last answer."""
    (made,) = episodes(agent, session := Speaking())

    assert made.trajectories[0].reward == reward
    assert part is None or part in made.metrics
    assert [value.completion for value in session.scored] == (["xa"] if part == "judged" else [])


@pytest.mark.parametrize(("row", "told"), [({"prompt": "how?"}, "how?"), ({"task": "how?"}, f"u>q{END}a>")])
def test_a_reward_function_is_told_the_prompt_of_the_row(row: dict[str, Any], told: str) -> None:
    """However the agent put it; what it asked, where the row has no text for it."""

    async def asks(row: dict[str, Any], base_url: str, api_key: str) -> None:
        messages: Any = [{"role": "user", "content": "q"}]
        await client(base_url, api_key).chat.completions.create(model="policy", messages=messages)

    episodes(asks, session := Speaking(), row=row)

    assert [value.prompt for value in session.scored] == [told]


def test_the_reward_agent_is_no_zero_where_an_agent_says_none() -> None:
    """Who asks it hears what to do."""
    asked = RewardInput(prompt="q", completion="a", completion_ids=(1,), stop_reason="stop", row={})
    (result,) = Scorer(Registry().build("reward", "agent"))([asked])

    assert (result.value, result.status) == (None, "raised") and "return a number" in result.detail


async def silent(row: dict[str, Any], base_url: str, api_key: str) -> float:
    return 1.0


async def forcing(row: dict[str, Any], base_url: str, api_key: str) -> float:
    """As frameworks do that want a call at any price; then as one that sends no messages."""
    asked = client(base_url, api_key)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    for body in ({"messages": [{"role": "user", "content": "x"}], "tools": [tool]}, {"messages": []}):
        with pytest.raises(openai.BadRequestError):
            await asked.chat.completions.create(model="policy", tool_choice="required", **body)
    return 1.0


async def wordy(row: dict[str, Any], base_url: str, api_key: str) -> str:
    await one(row, base_url, api_key)
    return "good"


async def crashing(row: dict[str, Any], base_url: str, api_key: str) -> float:
    await one(row, base_url, api_key)
    raise ZeroDivisionError("of the agent")


def leaving(row: dict[str, Any], base_url: str, api_key: str) -> float:
    """As a program's own main function does."""
    sys.exit("usage: ...")


async def cancelled(row: dict[str, Any], base_url: str, api_key: str) -> float:
    """As libraries do that lose count of their scopes."""
    raise asyncio.CancelledError("by nobody")


@pytest.mark.parametrize(
    ("agent", "error", "told"),
    [
        (leaving, EpisodeFailed, "ended with SystemExit"),
        (cancelled, EpisodeFailed, "ended with CancelledError"),
        (silent, EpisodeFailed, "asked nothing"),
        (forcing, EpisodeFailed, r"(?s)last refused for what the endpoint cannot do.*messages: "),
        (wordy, EpisodeFailed, "returned 'good'"),
        (crashing, ZeroDivisionError, "of the agent"),
    ],
)
def test_an_episode_without_answer_or_reward_fails(agent: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        episodes(agent, Speaking())


@pytest.mark.parametrize(("no_proxy", "refused"), [("", True), ("example.org,127.0.0.1", False), ("*", False)])
def test_a_proxy_that_would_get_what_an_agent_asks_is_refused(
    no_proxy: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a run is planned, with the line that helps; a command has an environment of its own."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
        monkeypatch.setenv(name.replace("HTTP", "NO").replace("http", "no"), no_proxy)

    AgentConfig(command=["true"])
    with pytest.raises(ConfigError, match="would go to a proxy") if refused else nullcontext():
        AgentConfig(run="json:loads")


def test_an_endpoint_makes_room_for_its_connections() -> None:
    """A thousand descriptors are few for agents."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        episodes(one, Speaking())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(65_536, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("name", ["nowhere.py:run", "json:nothing", "os:getcwd"])
def test_what_is_no_agent_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        agent_function(name)
