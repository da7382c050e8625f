"""A run of the kind `online`: its plan, what it refuses, where clients find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_agents.serve.command import serve_command
from areal_agents.serve.door import Door, keep_key, tell_key
from areal_core.algorithms.config import NormLevel
from areal_core.config.load import dump_config, load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ArealError, ConfigError, PlanError, StorageError
from areal_core.plugins.registry import Registry
from areal_tasks.preview import preview
from areal_torch.testing.models import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), max_position=1024)


def planned(model: Path, *overrides: str) -> Plan:
    return make_plan(load_config(None, [f"model.path={model}", "kind=online", *overrides]), Registry(), {})


def refusal(model: Path, *overrides: str) -> str:
    with pytest.raises(PlanError) as caught:
        planned(model, *overrides)
    return str(caught.value)


def test_a_run_of_clients_needs_nothing_but_a_model(model: Path) -> None:
    """Each session is a group; rewards are compared over the batch; no reward function is asked."""
    config = planned(model).config

    assert (config.data.name, config.rollout.workflow.name, config.rollout.group_size) == ("clients", "online", 1)
    assert (config.algorithm.advantages.estimator.name, config.rollout.reward.name) == ("reinforce++", "")


def test_the_plan_of_a_plan_is_the_same(model: Path) -> None:
    """So `config.yaml` of its folder resumes it."""
    once = planned(model)

    again = make_plan(load_config(base=yaml.safe_load(dump_config(once.config))), Registry(), {})

    assert again.config == once.config


def test_what_clients_bring_is_refused_by_name_and_all_at_once(model: Path) -> None:
    """Whoever serves an ordinary run's yaml is told everything that has to go."""
    text = refusal(
        model,
        "data.name=jsonl",
        "evaluation.data.name=jsonl",
        "rollout.reward.name=exact_match",
        "rollout.group_size=4",
        "rollout.accept=mixed",
        "rollout.workflow.name=multi_turn",
        "rollout.episode_timeout_s=60",
    )

    for key in ("data", "evaluation", "group_size", "reward", "accept", "workflow", "episode_timeout_s"):
        assert key in text.partition("why:")[0], key
    assert "options.session_timeout_s" in text and "areal evaluate" in text


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "reinforce++_baseline"])
def test_what_compares_answers_to_one_prompt_is_refused(model: Path, name: str) -> None:
    """And a way out is told that is one."""
    text = refusal(model, f"algorithm.advantages.estimator.name={name}")

    assert name in text and "every session is alone" in text and "group_size" not in text


def test_other_settings_of_advantages_stay(model: Path) -> None:
    """Only what compares within a group is replaced, with a critic too."""
    plain = planned(model, "algorithm.advantages.reward_clip=5").config.algorithm.advantages
    critic = planned(model, "critic.backend=reference:d1").config.algorithm.advantages
    chosen = planned(model, "algorithm.advantages.reward_norm.mean=batch").config.algorithm.advantages

    assert (plain.estimator.name, plain.reward_clip, plain.reward_norm.mean) == ("reinforce++", 5.0, NormLevel.NONE)
    assert (critic.estimator.name, critic.reward_norm.mean, critic.reward_norm.std) == ("gae", *[NormLevel.BATCH] * 2)
    assert (chosen.estimator.name, chosen.reward_norm.mean) == ("gae", NormLevel.BATCH)


@pytest.mark.parametrize(
    ("host", "warns"),
    [
        *((name, False) for name in ("127.0.0.1", "localhost", "::1", "127.3.2.1")),
        *((name, True) for name in ("0.0.0.0", "::", "192.0.2.7", "gpu.example")),
    ],
)
def test_another_host_than_loopback_is_warned_of(model: Path, host: str, warns: bool) -> None:
    told = [warning for warning in planned(model, f"options.host='{host}'").warnings if "other machines" in warning]

    assert bool(told) == warns


@pytest.mark.parametrize(
    "options",
    [
        *({"port": port} for port in (70_000, -1)),
        *({name: 0} for name in ("idle_timeout_s", "session_timeout_s", "max_sessions", "max_requests")),
        *({"host": ""}, {"turn_discount": 1.5}, {"prot": 8200}),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArealError, match=next(iter(options))):
        Registry().build("kind", "online", options, "options")


def test_waiting_for_clients_is_no_standstill(model: Path) -> None:
    """A scheduler that ends a run in which no worker answers is told so; who sets its time is warned."""
    plain, asked = planned(model), planned(model, "scheduler.options.progress_timeout_s=60")

    assert plain.config.scheduler.options == {"progress_timeout_s": 0.0} and plain.warnings == ()
    assert asked.config.scheduler.options == {"progress_timeout_s": 60}
    assert ["without clients" in warning for warning in asked.warnings] == [True]


def test_a_dry_run_says_where_clients_come(model: Path, tmp_path: Path) -> None:
    """In place of a first row."""
    told = preview(planned(model, f"out={tmp_path}/run", "options.port=8211"), Registry())

    assert told == f"clients   come to 127.0.0.1:8211 with the key in {tmp_path}/run/online.json"


def test_a_run_of_another_kind_is_not_served(tmp_path: Path) -> None:
    """It is not made one behind its back."""
    file = tmp_path / "run.yaml"
    file.write_text("kind: sft")

    with pytest.raises(PlanError, match="kind=sft"):
        serve_command(file)
    with pytest.raises(ConfigError, match=r"areal serve run\.yaml"):
        serve_command()


def test_an_address_that_is_taken_is_told_before_anything_loads() -> None:
    """Also by a run that has not opened yet."""
    door = Door("127.0.0.1", 0)
    port = int(door.base_url.removesuffix("/v1").rpartition(":")[2])

    with pytest.raises(ConfigError, match=r"options\.port"):
        Door("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"options\.host"):
        Door("192.0.2.7", 0)
    door._socket.close()


@pytest.mark.parametrize(("host", "base"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")])
def test_the_address_that_is_told_can_be_asked(host: str, base: str) -> None:
    """That of all addresses cannot itself."""
    door = Door(host, 0)

    assert door.base_url.startswith(base)
    door._socket.close()


def test_the_key_is_kept_for_a_resume_and_for_its_user_alone(tmp_path: Path) -> None:
    """A file that is damaged gives a new one."""
    path = tmp_path / "online.json"
    key = keep_key(path)
    tell_key(path, "http://127.0.0.1:1/v1", key)

    assert json.loads(path.read_text()) == {"base_url": "http://127.0.0.1:1/v1", "admin_key": key}
    assert path.stat().st_mode & 0o777 == 0o600 and keep_key(path) == key
    path.write_text("[]")
    assert keep_key(path) not in ("", key)
    with pytest.raises(StorageError):
        tell_key(tmp_path / "nowhere" / "online.json", "", key)
