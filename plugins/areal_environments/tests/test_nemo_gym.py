"""Resource servers that the real NeMo Gym ships, each in a process of its Python, played against the endpoint."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from areal_environments import nemo_gym
from areal_environments.testing.packages import interpreter
from areal_environments.testing.scripted import call, episode, episodes

pytestmark = pytest.mark.environments


NAMES = ["example_session_state_mgmt", "example_multi_step", "workplace_assistant", "example_multi_turn_gymnasium"]


@frozen
class Server:
    """One resource server, and its example rows."""

    url: str
    rows: list[dict[str, Any]]  # Any: JSON


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """Yield the servers by their names."""
    script = str(Path(__file__).with_name("resource_servers.py"))
    command = [interpreter("nemo-gym"), script, *NAMES, "blackjack"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        with process.stdin:
            found = {}
            for _ in command[2:]:
                name, port, data = json.loads(process.stdout.readline())
                rows = [json.loads(line) for line in Path(data, "example.jsonl").read_text().splitlines()]
                found[name] = Server(f"http://127.0.0.1:{port}", rows)
            yield found


def test_tools_and_verification_share_a_session(servers: dict[str, Server]) -> None:
    """The server's counter begins where the row says; calls change it; the reward is the server's own."""
    script = [
        call("increment_counter", count=1) + call("increment_counter", count=2),
        call("get_counter_value"),
        "it is 6",
    ]
    nosy = [call("seed_session", initial_count=9), call("increment_counter"), "done"]
    server = servers["example_session_state_mgmt"]
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server.url))
    cases = [(server.rows[0], script), (server.rows[0], script[1:]), (server.rows[0], nosy)]
    (right, text), (wrong, _), (_, told) = episodes(workflow, cases)

    assert '[tool]{"success":true}<eos>[tool]{"success":true}<eos>' in text and '[tool]{"count":6}<eos>' in text
    assert text.endswith("[assistant]<it is 6<eos>>")
    assert [made.trajectories[-1].reward for made in (right, wrong)] == [1.0, 0.0]
    assert "there is no tool seed_session" in told and "Field required" in told, "only tools of the row can be called"


def test_numbers_beside_the_reward_are_metrics(servers: dict[str, Server]) -> None:
    """What a verification tells of the parts; answers are read from calls in the response."""
    server = servers["example_multi_step"]
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server.url))
    expected = server.rows[0]["expected_synonym_values"]
    right = [call("extract_synonym_values", synonym_values=expected), "done"]
    wrong = [call("extract_synonym_values", synonym_values=expected[::-1]), "done"]
    (one, _), (other, _) = episodes(workflow, [(server.rows[0], right), (server.rows[0], wrong)])

    assert [made.trajectories[-1].reward for made in (one, other)] == [1.0, 0.0]
    assert [made.metrics["set_overlap"] for made in (one, other)] == [1.0, 1.0]
    assert [made.metrics["order_instruction_following_failure"] for made in (one, other)] == [0.0, 1.0]


def test_a_workplace_of_many_tools_is_played(servers: dict[str, Server]) -> None:
    """Its rows bring 27 tools and a database per session."""
    server = servers["workplace_assistant"]
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server.url))
    calls = [call(each["name"], **json.loads(each["arguments"])) for each in server.rows[0]["ground_truth"]]
    (right, text), (wrong, _) = episodes(
        workflow, [(server.rows[0], ["".join(calls), "done"]), (server.rows[0], ["done"])]
    )

    assert [made.trajectories[-1].reward for made in (right, wrong)] == [1.0, 0.0], text


@pytest.mark.parametrize(("last", "reward"), [("yes: paris", 1.0), ("no", 0.0)])
def test_an_environment_in_the_style_of_gymnasium_is_stepped(
    servers: dict[str, Server], last: str, reward: float
) -> None:
    """What it observes is the next message, rewards of its steps are summed, and it says when it ends."""
    row = {
        "responses_create_params": {"input": "Where?"},
        "follow_ups": ["Sure?", "Really?"],
        "expected_answer": "Paris",
    }
    server = servers["example_multi_turn_gymnasium"]
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server.url, agent="gymnasium"))
    made, text = episode(workflow, row, ["a", "b", last])

    assert "[user]Where?<eos>[assistant]<a<eos>>[user]Sure?<eos>[assistant]<b<eos>>[user]Really?<eos>" in text
    assert (made.trajectories[-1].reward, made.metrics["terminated"]) == (reward, 1.0)


def test_a_game_of_nemo_gym_is_played_to_its_end(servers: dict[str, Server]) -> None:
    """Blackjack: what is dealt is observed when the session begins."""
    server = servers["blackjack"]
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server.url, agent="gymnasium"))
    made, text = episode(workflow, server.rows[0], ["<action>stand</action>"])

    assert "Your hand: [" in text
    assert made.trajectories[-1].reward in (-1.0, 0.0, 1.0) and made.metrics["terminated"] == 1.0
