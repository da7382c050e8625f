"""Nothing a run writes down holds a secret: by name, by nesting, by the shape of a text; and nothing else is hidden."""

from __future__ import annotations

import json

import pytest

from areal_core.plugins.redact import REDACTED, names_secret, redact

SECRETS = [
    "api_key",
    "apiKey",
    "API_KEY",
    "x-api-key",
    "apikey",
    "key",
    "key_id",
    "access_key",
    "accessKey",
    "access_key_id",
    "aws_access_key_id",
    "aws_secret_access_key",
    "secret",
    "secret_key",
    "secretkey",
    "client_secret",
    "shared_secret",
    "app_secret",
    "password",
    "passwd",
    "pwd",
    "db_pwd",
    "passphrase",
    "pass",
    "user_pass",
    "token",
    "access_token",
    "refresh_token",
    "auth_token",
    "hf_token",
    "HF_TOKEN",
    "github_token",
    "bearer",
    "bearer_token",
    "id_token",
    "session_token",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "basic_auth",
    "cookie",
    "cookies",
    "session_cookie",
    "session_id",
    "pat",
    "personal_access_token",
    "private_key",
    "privateKey",
    "ssh_private_key",
    "signing_key",
    "encryption_key",
    "signature",
    "webhook",
    "webhook_url",
    "slack_webhook",
    "dsn",
    "sentry_dsn",
    "connection_string",
    "conn_str",
    "jwt",
    "otp",
    "pin",
    "sas",
    "sas_token",
    "wandb_api_key",
]
PLAIN = [
    "name",
    "keyboard",
    "monkey",
    "tokenizer",
    "max_new_tokens",
    "min_new_tokens",
    "num_tokens",
    "eos_token",
    "pad_token",
    "bos_token",
    "eos_token_id",
    "image_token_id",
    "stop_token",
    "tokens_per_second",
    "author",
    "passage",
    "compass",
    "turnkey",
    "keep",
    "temperature",
    "path",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    """Whatever stands under it, nested or in a list, is not written."""
    value = {name: "hunter2-a", "deep": [{name: {"user": "hunter2-b", "list": ["hunter2-c"]}}]}

    assert names_secret(name)
    assert "hunter2" not in json.dumps(redact(value))


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_are_left_alone(name: str) -> None:
    """Counts of tokens and special tokens are no secrets."""
    assert redact({name: "some text", "n": {name: 5}}) == {name: "some text", "n": {name: 5}}


def test_numbers_under_names_of_secrets_are_hidden_and_counts_are_not() -> None:
    """A pin is a number, and so is a count of tokens."""
    value = {"pin": 1234, "password": 5.5, "tokens": 4, "token": 7, "key": 3, "use_auth": True, "secret": None}

    shown = redact(value)

    assert (shown["pin"], shown["password"]) == (REDACTED, REDACTED)
    assert (shown["tokens"], shown["token"], shown["key"], shown["use_auth"], shown["secret"]) == (4, 7, 3, True, None)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2xx@host/path",
        "https://host/hook?token=hunter2xx&x=1",
        "https://host/?a=1&api_key=hunter2xx",
        "https://host/?sig=hunter2xx",
        "Authorization: Bearer hunter2xx.yy",
        "basic hunter2xx==",
        "{'Authorization': 'Bearer hunterpass'}",
        r"{\"authorization\": \"Basic hunter2xx\"}",
        "OPENAI_API_KEY=hunter2xx",
        "use sk-hunter2xx" + "a1" * 12,
        "hf_hunter2xx" + "a1" * 12,
        "ghp_hunter2xx" + "a1" * 12,
    ],
)
def test_a_secret_is_known_by_the_shape_of_its_text(text: str) -> None:
    """Whatever it stands under."""
    shown = redact({"url": text})["url"]

    assert "hunter" not in shown and REDACTED in shown
    assert (
        redact({"url": "https://host/path?page=2 bearer of news"})["url"] == "https://host/path?page=2 bearer of news"
    )


@pytest.mark.parametrize(
    "text",
    [
        "basic arithmetic and token embeddings, the bearer instruments of basic block_size=128",
        "authorization required: the api_key is missing, or authorization: none",
        "unexpected token NotImplementedError at token 128001.5",
        "runs/sk-experiment-20261123 on hf_openr1_math_220k_subset, task-1, desk-2",
        "https://host/path?page=2&step=3, me@host",
        "for token in tokens: key = keys[token]; print(key)",
    ],
)
def test_a_text_that_holds_no_secret_is_left_as_it_is(text: str) -> None:
    """Prompts, answers and errors are full of tokens, keys and basics."""
    assert redact(text) == text


def test_an_event_may_be_long_and_hostile() -> None:
    """What begins like a secret again and again costs time in proportion to its length, not to its square."""
    for piece in ("sk-", "eyJ-", "://", "?a", "api_key", "bearer ", "authorization: ", "basic a=", "token\\"):
        text = piece * (40_000 // len(piece))
        assert redact(text) == text


def test_what_is_redacted_once_stays_as_it_is() -> None:
    """An error passes more than one place on its way to the disk."""
    once = redact("https://a:b@c/?key=hunter2xx Authorization: Bearer hunter2xx, basic hunter2xx==")

    assert redact(once) == once and "hunter2" not in once
