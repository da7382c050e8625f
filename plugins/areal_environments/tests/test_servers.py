"""The protocols of environments' servers, against small real ones: served by the run, or elsewhere by their URL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from areal_core.contract.errors import ConfigError, DatasetError, EpisodeFailed
from areal_environments import nemo_gym, nemo_gym_rows, openenv
from areal_environments.serving import Served
from areal_environments.testing.scripted import call, episode, episodes

GUESS = """
import asyncio
import json
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute


async def session(socket):
    await socket.accept()
    secret = None
    async for text in socket.iter_text():
        asked = json.loads(text)
        if asked["type"] == "reset":
            secret, told = asked["data"]["seed"] % 10, {"observation": {"hint": "?"}, "reward": None, "done": False}
        elif asked["data"].get("type") == "list_tools":
            told = {"observation": {"tools": [{"name": "guess", "description": "Guess."}]}}
        elif asked["data"].get("type") == "call_tool":
            right = asked["data"]["arguments"].get("number") == secret
            error = {"error_type": "invalid_args", "message": "no number"}
            seen = {"result": "yes" if right else {"closer": True}, "error": error if "number" not in text else None}
            told = {"observation": seen, "reward": float(right), "done": right}
        elif not asked["data"].get("number", "").isdigit():
            error = {"code": "VALIDATION_ERROR", "errors": [{"msg": "no digit"}]}
            await socket.send_json({"type": "error", "data": error})
            continue
        elif asked["data"]["number"] == "66":
            await asyncio.Event().wait()
        elif asked["data"]["number"] == "99":
            await socket.close()
            return
        else:
            right = int(asked["data"]["number"]) == secret
            told = {"observation": {"hint": "no"}, "reward": 1.0 if right else -0.25, "done": right}
        await socket.send_json({"type": "observation", "data": told})


app = Starlette(routes=[WebSocketRoute("/ws", session)])
"""
COUNT = """
import asyncio
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

COUNTS = {}


async def seed(request):
    name = str(len(COUNTS))
    COUNTS[name] = (await request.json())["start"]
    answer = JSONResponse({})
    answer.set_cookie("session", name)
    return answer


async def add(request):
    COUNTS[request.cookies["session"]] += (await request.json())["n"]
    return JSONResponse({"count": COUNTS[request.cookies["session"]]})


async def verify(request):
    body = await request.json()
    count = COUNTS[request.cookies["session"]]
    reward = "much" if body["target"] is None else float(body["target"] == count)
    kinds = [item["type"] for item in body["response"]["output"]]
    return JSONResponse({**body, "reward": reward, "calls": kinds.count("function_call")})


async def slow(request):
    await asyncio.Event().wait()


async def broken(request):
    return PlainTextResponse("the world ended", status_code=500)


app = Starlette(routes=[
    Route("/seed_session", seed, methods=["POST"]), Route("/add", add, methods=["POST"]),
    Route("/verify", verify, methods=["POST"]), Route("/bad/seed_session", broken, methods=["POST"]),
    Route("/slow/seed_session", slow, methods=["POST"]),
])
"""
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
ROW = {"start": 3, "target": 5, "responses_create_params": {"input": [{"role": "developer", "content": "Count."}]}}
ROW["responses_create_params"] |= {"tools": [TOOL]}  # type: ignore[operator]


def served(tmp_path: Path, text: str, request: pytest.FixtureRequest) -> str:
    path = tmp_path / f"server_{abs(hash(request.node.name))}.py"
    path.write_text(text)
    return f"{path}:app"


@pytest.fixture
def guess(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return served(tmp_path, GUESS, request)


@pytest.fixture
def count(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return served(tmp_path, COUNT, request)


def test_what_the_policy_says_becomes_actions_and_observations_messages(guess: str) -> None:
    """Rewards of the steps are summed, or the last one counts; a wrong action is told to the policy."""
    options = {"server": guess, "action": "number", "pattern": r"(\w+)$", "observation": "it says {hint}"}
    row, script = {"reset": {"seed": 17}}, ["try 3", "try x", "now 7"]
    made, text = episode(openenv.workflow(openenv.OpenEnvConfig(**options)), row, script)
    last, _ = episode(openenv.workflow(openenv.OpenEnvConfig(**options, reward="last")), row, script)

    assert text.startswith(
        "[user]it says ?<eos>[assistant]<try 3<eos>>[user]it says no<eos>[assistant]<try x<eos>>[user]"
    )
    assert "This is no action" in text and "no digit" in text and text.endswith("[assistant]<now 7<eos>>")
    assert [each.trajectories[0].reward for each in (made, last)] == [0.75, 1.0]


def test_tools_of_an_environment_are_called(guess: str) -> None:
    """Results are told as they are, errors by their message; it ends with a call, or without one."""
    config = openenv.OpenEnvConfig(server=guess, tools=True, observation="it says {hint}")
    right = [call("guess") + call("guess", number=1), call("other"), call("guess", number=7) + call("guess"), "never"]
    (made, text), (none, said) = episodes(
        openenv.workflow(config), [({"reset": {"seed": 7}}, right), ({"reset": {"seed": 7}}, ["no"])]
    )

    assert text.startswith("[tools]guess <eos>[user]it says ?<eos>[assistant]<")
    assert '[tool]invalid_args: no number<eos>[tool]{"closer": true}<eos>' in text
    assert "[tool]there is no tool other; there are guess<eos>" in text and "never" not in text
    assert [each.trajectories[-1].reward for each in (made, none)] == [1.0, 0.0] and said.endswith("<no<eos>>")


def test_a_game_ends_after_its_turns(guess: str) -> None:
    """Also without a reward of the last step."""
    config = openenv.OpenEnvConfig(server=guess, action="number", max_turns=2)
    made, _ = episode(openenv.workflow(config), {"reset": {"seed": 1}}, ["2", "3", "4"])

    assert (made.trajectories[0].reward, made.metrics["turns"], made.metrics["done"]) == (-0.5, 2.0, 0.0)


def test_a_connection_that_is_closed_fails_the_episode(guess: str) -> None:
    """It is no reward of zero."""
    config = openenv.OpenEnvConfig(server=guess, action="number")
    with pytest.raises(EpisodeFailed, match="gave no answer to step"):
        episode(openenv.workflow(config), {"reset": {"seed": 1}}, ["99"])


def test_an_environment_that_takes_too_long_fails_the_episode(guess: str) -> None:
    """With the option that bounds it."""
    config = openenv.OpenEnvConfig(server=guess, action="number", step_timeout_s=0.2)
    with pytest.raises(EpisodeFailed, match="gave no answer to step") as caught:
        episode(openenv.workflow(config), {"reset": {"seed": 1}}, ["66"])
    assert "step_timeout_s" in str(caught.value.fix)


def test_a_resource_server_that_takes_too_long_or_breaks_fails_the_episode(count: str) -> None:
    """With what it said, or the option that bounds it."""

    async def slow_and_broken() -> list[EpisodeFailed]:
        server, failures = Served(count), []
        address = await server.address()
        for path in ("slow", "bad"):
            async with aiohttp.ClientSession(headers=dict(address.headers), timeout=limit) as http:
                try:
                    await nemo_gym.Server(http, f"{address.url}/{path}").told("/seed_session", ROW)
                except EpisodeFailed as error:
                    failures.append(error)
        await server.close()
        return failures

    limit = aiohttp.ClientTimeout(total=0.2)
    slow, broken = asyncio.run(slow_and_broken())
    assert "did not answer /seed_session" in slow.what and "request_timeout_s" in str(slow.fix)
    assert "answered 500 to /seed_session" in broken.what and "the world ended" in str(broken.why)


def test_rows_of_splits_have_other_seeds() -> None:
    """And rows by another argument count from 0."""
    train, held = (openenv.rows(openenv.OpenEnvRows(size=3, split=split)) for split in ("train", "held"))
    tasks = openenv.rows(openenv.OpenEnvRows(size=2, argument="index", reset={"split": "test"}))

    seeds = [row["reset"]["seed"] for row in (*train, *held)]
    assert len(set(seeds)) == 6 and max(seeds) < 2**31
    assert list(tasks) == [{"reset": {"split": "test", "index": 0}}, {"reset": {"split": "test", "index": 1}}]


def test_a_session_of_a_resource_server_is_an_episode(count: str) -> None:
    """Tools and verification share a cookie, episodes do not; numbers beside the reward are metrics."""
    right, wrong = [call("add", n=2), "done"], [call("add", n=1) + call("add", n=4), "done"]
    (one, text), (other, _) = episodes(
        nemo_gym.workflow(nemo_gym.NemoGymConfig(server=count)), [(ROW, right), (ROW, wrong)]
    )

    assert "[system]Count.<eos>[assistant]<" in text and '[tool]{"count":5}<eos>[assistant]<done<eos>>' in text
    assert [each.trajectories[-1].reward for each in (one, other)] == [1.0, 0.0]
    assert [each.metrics["calls"] for each in (one, other)] == [1.0, 2.0]


@pytest.mark.parametrize(
    "said", [call("verify"), call("nothing"), '<tool_call>{"name": "add", "arguments": 3}</tool_call>']
)
def test_a_call_that_cannot_be_made_is_told_to_the_policy(count: str, said: str) -> None:
    """Above all one of what only the run may call."""
    _, text = episode(nemo_gym.workflow(nemo_gym.NemoGymConfig(server=count)), ROW, [said, "done"])

    assert "there is no tool" in text or "Internal Server Error" in text


def test_a_server_that_does_not_verify_fails_the_episode(count: str) -> None:
    """So does a row of another data set."""
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=count))
    with pytest.raises(EpisodeFailed, match="gave the reward 'much'"):
        episode(workflow, {**ROW, "target": None}, ["done"])
    with pytest.raises(DatasetError, match="no responses_create_params"):
        episode(workflow, {"prompt": "a"}, ["done"])


def test_a_server_that_is_not_there_fails_the_episode() -> None:
    """With what to do."""
    nowhere = "http://127.0.0.1:9"
    for workflow, says in (
        (nemo_gym.workflow(nemo_gym.NemoGymConfig(server=nowhere)), "did not answer"),
        (openenv.workflow(openenv.OpenEnvConfig(server=nowhere)), "no environment at"),
    ):
        with pytest.raises(EpisodeFailed, match=says) as caught:
            episode(workflow, ROW, ["done"])
        assert "start it" in str(caught.value.fix)


def test_a_server_of_the_run_answers_only_to_the_run(count: str) -> None:
    """Others on this machine have not its key; by its URL and key it is one as any other; closed, it is gone."""

    async def asked() -> list[int]:
        server = Served(count)
        address = await server.address()
        statuses = []
        async with aiohttp.ClientSession() as http:
            for headers in ({}, {"Authorization": "Bearer no"}, dict(address.headers)):
                async with http.post(f"{address.url}/seed_session", headers=headers, json={"start": 1}) as answer:
                    statuses.append(answer.status)
            assert await server.address() == address
            await server.close()
            await server.close()
            with pytest.raises(aiohttp.ClientConnectionError):
                await http.post(f"{address.url}/seed_session")
        return statuses

    assert asyncio.run(asked()) == [401, 401, 200]


def test_a_server_of_the_run_keeps_an_idle_connection_longer_than_its_client(count: str) -> None:
    """Else a call may arrive at one that is being closed, and an episode fails of it."""

    async def kept() -> tuple[float, float]:
        server = Served(count)
        await server.address()
        assert server._running
        async with aiohttp.TCPConnector() as connector:
            assert connector._keepalive_timeout
            both = connector._keepalive_timeout, server._running.config.timeout_keep_alive
        await server.close()
        return both

    of_client, of_server = asyncio.run(kept())
    assert of_client < of_server


def test_what_is_no_application_is_refused(tmp_path: Path) -> None:
    """With the option and what it may name; before a worker starts."""
    path = tmp_path / "no_application.py"
    path.write_text("app = 3")

    for name in ("app", "other"):
        with pytest.raises(ConfigError, match="is no application") as caught:
            openenv.workflow(openenv.OpenEnvConfig(server=f"{path}:{name}"))
        assert "FILE.py:APP" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("line", "missing", "fix"),
    [
        ("from nemo_gym.app import thing", "nemo_gym", "nemo-gym]"),
        ("import nemo_gym.app, no_such_package", "nemo_gym, no_such_package", "nemo-gym]"),
        ("import no_such_package", "no_such_package", "install it"),
    ],
)
def test_what_an_application_lacks_is_told_while_a_run_is_planned(
    tmp_path: Path, line: str, missing: str, fix: str
) -> None:
    """Its file is not run for that; what lies beside it, and imports that may fail, are no lack."""
    path = tmp_path / "lacks.py"
    (tmp_path / "beside.py").touch()
    path.write_text(f"{line}\nimport beside\ntry:\n    import no_other\nexcept ImportError:\n    pass\napp = 1 / 0")

    for config in (openenv.OpenEnvConfig, nemo_gym.NemoGymConfig):
        with pytest.raises(ConfigError, match="cannot be served") as caught:
            config(server=f"{path}:app")
        assert f"it imports {missing}, which" in str(caught.value.why) and fix in str(caught.value.fix)


def test_an_episode_without_room_for_more_is_scored_as_it_is(guess: str) -> None:
    """Its requests are used up after two answers."""
    config = openenv.OpenEnvConfig(server=guess, action="number", max_requests=2)
    made, _ = episode(openenv.workflow(config), {"reset": {"seed": 1}}, ["2", "3", "1"])

    assert (made.trajectories[0].reward, made.metrics["turns"]) == (-0.5, 2.0)


LINE = '{"responses_create_params": {"input": "a"}, "more": 1}'


def test_rows_of_nemo_gym_are_taken_as_they_are(tmp_path: Path) -> None:
    """So many as are asked for; blank lines are none."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{LINE}\n\n{LINE}\n{LINE}\n")

    assert list(nemo_gym_rows.rows(nemo_gym_rows.NemoGymRows(path=str(path), limit=2))) == [json.loads(LINE)] * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"prompt": "a"}', "no responses_create_params.input"),
        ('{"responses_create_params": {"input": [{"type": "computer_call"}]}}', "an item of type computer_call"),
        ('{"responses_create_params": {"input": "a", "tools": [{"type": "mcp"}]}}', "a tool of type mcp"),
        ('{"responses_create_params": {"input": [{"content": "a"}]}}', "KeyError: 'role'"),
    ],
)
def test_a_line_that_is_no_row_of_nemo_gym_is_told_with_its_number(tmp_path: Path, line: str, says: str) -> None:
    """When the data is opened, not in the middle of a run."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{LINE}\n{line}\n")

    with pytest.raises(DatasetError, match=r"rows.jsonl:2 is no row") as caught:
        nemo_gym_rows.rows(nemo_gym_rows.NemoGymRows(path=str(path)))
    assert says in str(caught.value.why) and caught.value.fix


@pytest.mark.parametrize("name", ["none.jsonl", "blank.jsonl", "."])
def test_a_file_without_rows_is_told(tmp_path: Path, name: str) -> None:
    """Also one that is none."""
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(DatasetError, match=r"cannot read|has no rows"):
        nemo_gym_rows.rows(nemo_gym_rows.NemoGymRows(path=str(tmp_path / name)))
