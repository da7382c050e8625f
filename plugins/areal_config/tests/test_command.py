"""`areal config` in a terminal."""

from __future__ import annotations

import json

import pytest

from areal_core.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command and return what it printed."""
    code = main(["config", *words])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


def test_all_keys_fit_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns; every section by its name; a section told before is not told again."""
    monkeypatch.setenv("COLUMNS", "80")

    lines = run(capsys).splitlines()

    assert max(map(len, lines)) <= 80
    assert any(line.startswith("rollout.sampling ") for line in lines)
    assert any(line.startswith("  group_size ") and " 8 " in line for line in lines)
    assert not any(line.startswith("critic.optimizer") for line in lines)
    assert len(lines) < 500


def test_one_key_is_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Type, range, default, meaning, as it stands in a yaml and on a command line."""
    told = run(capsys, "rollout.sampling.top_p")

    for part in ("number", "> 0, <= 1", "1.0", "likeliest tokens", "    top_p: 1.0", "areal train run.yaml rollout"):
        assert part in told


def test_a_section_is_told_with_all_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """At any depth."""
    told = run(capsys, "rollout")

    assert told.index("group_size") < told.index("rollout.sampling") < told.index("temperature")
    assert "  name " in run(capsys, "loggers")


def test_options_are_told_of_the_backend_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, or one; without a backend, whose there are."""
    assert "activation_checkpointing" in run(capsys, "actor.options", "--backend", "fsdp")
    assert "allowed" in run(capsys, "actor.options.wrap", "--backend", "fsdp")
    assert "fsdp" in run(capsys, "critic.options")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.max_stalenes"], "did you mean 'rollout.max_staleness'"),
        (["steps", "--backend", "fsdp"], "steps has no options of a backend"),
        (["actor.options", "--backend", "fsd"], "no train plugin is called 'fsd'"),
    ],
)
def test_a_wrong_name_is_answered(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it may have meant, and no exit code 0."""
    assert main(["config", *words]) != 0
    assert said in capsys.readouterr().err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """For `areal config --schema > run.schema.json`."""
    assert json.loads(run(capsys, "--schema"))["title"] == "A run of areal"
