"""Resource servers of the real NeMo Gym, those it ships and one made here, played against the endpoint."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from areal_environments import nemo_gym

from .speaking import call, episode, episodes

pytestmark = pytest.mark.environments
COUNTER = """
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from resources_servers.example_session_state_mgmt import app as shipped

config = shipped.StatefulCounterResourcesServerConfig(host="", port=0, entrypoint="", name="counter", domain="other")
head = BaseServerConfig(host="127.0.0.1", port=1)
client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create())
app = shipped.StatefulCounterResourcesServer(config=config, server_client=client).setup_webserver()
"""


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    path = tmp_path / f"counter_{abs(hash(request.node.name))}.py"
    path.write_text(COUNTER)
    return f"{path}:app"


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    text = resources.files("resources_servers.example_session_state_mgmt").joinpath("data/example.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_tools_and_verification_share_a_session(server: str, rows: list[dict[str, Any]]) -> None:
    """The server's counter begins where the row says; calls change it; the reward is the server's own."""
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server))
    script = [
        call("increment_counter", count=1) + call("increment_counter", count=2),
        call("get_counter_value"),
        "it is 6",
    ]
    (right, text), (wrong, _) = episodes(workflow, [(rows[0], script), (rows[0], script[1:])])

    assert '[tool]{"success":true}<eos>[tool]{"success":true}<eos>' in text and '[tool]{"count":6}<eos>' in text
    assert text.endswith("[assistant]<it is 6<eos>>")
    assert [made.trajectories[-1].reward for made in (right, wrong)] == [1.0, 0.0]


def test_only_tools_of_the_row_can_be_called(server: str, rows: list[dict[str, Any]]) -> None:
    """The policy cannot verify or seed its own session; what it does wrong is told to it."""
    workflow = nemo_gym.workflow(nemo_gym.NemoGymConfig(server=server))
    _, text = episode(workflow, rows[0], [call("seed_session", initial_count=9), call("increment_counter"), "done"])

    assert "there is no tool seed_session" in text and "Field required" in text
