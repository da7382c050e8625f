"""What never reaches config.yaml, the report or a tracker."""

from __future__ import annotations

import pytest

from areal_core.config.load import dump_config, redact, redacted_keys
from areal_core.config.placement import PlacementConfig
from areal_core.config.schema import LoggerConfig, RoleConfig, RunConfig


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "apiKey", "api-key", "WANDB_API_KEY", "key", "access_key_id", "accessKey", "hf_token", "tokens"),
        *("PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT", "SECRET_VALUE"),
        *("password", "passwd", "client_secret", "auth", "Authorization", "session.cookie", "credentials"),
    ],
)
def test_a_value_under_a_key_that_names_a_secret_is_redacted(name: str) -> None:
    """However the key is spelt, and however deep it lies."""
    assert redact({"options": [{name: "hunter2"}]}) == {"options": [{name: "<redacted>"}]}


@pytest.mark.parametrize("name", ["eos_token", "pad_token", "keyword", "tokenizer", "author", "monkey"])
def test_a_value_under_another_key_is_kept(name: str) -> None:
    """A run could not be resumed without it."""
    assert redact({name: "</s>"}) == {name: "</s>"}


def test_secrets_of_an_environment_are_redacted_in_the_dump() -> None:
    """What a run gives its workers is written down by name; a value that is no secret is kept."""
    env = {"HF_TOKEN": "hunter2", "NCCL_DEBUG": "INFO"}
    dumped = dump_config(RunConfig(actor=RoleConfig(placement=PlacementConfig(env=env))))

    assert "hunter2" not in dumped
    assert {"HF_TOKEN: <redacted>", "NCCL_DEBUG: INFO"} <= {line.strip() for line in dumped.splitlines()}


def test_user_and_password_in_an_address_are_redacted() -> None:
    """The rest of the address is kept: it says where the numbers went."""
    assert redact("https://me:hunter2@host/x?y=a@b") == "https://<redacted>@host/x?y=a@b"
    assert redact("https://host/x@y") == "https://host/x@y"


def test_a_redacted_address_cannot_be_resumed_with() -> None:
    """It would be taken for the user's name."""
    config = RunConfig(loggers=(LoggerConfig(name="wandb", options={"host": "https://<redacted>@host"}),))

    assert redacted_keys(config) == ["loggers[0].options.host"]
