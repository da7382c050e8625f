"""A resumed run's configuration is compared with the one it had: what changed is told, what must not is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.config.load import dump_config, load_config
from areal_core.contract.errors import RunFolderError
from areal_core.plugins.redact import redact
from areal_core.plugins.structure import unstructure
from areal_report.changes import changes

RUN = """
name: spell
model: {path: m}
data: {name: jsonl, options: {path: a.jsonl, api_key: hunter2}}
critic: {backend: reference:d1}
actor: {lora: {rank: 4, alpha: 8, targets: [q_proj]}}
loggers: [{name: wandb, options: {api_key: hunter2}}]
"""


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The `config.yaml` of a run."""
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "config.yaml").write_text(dump_config(load_config(tmp_path / "run.yaml")))
    return tmp_path / "config.yaml"


def changed(before: Path, *overrides: str) -> list[str]:
    """Return what is told of a resume with the run's own file and overrides."""
    now = load_config(before.with_name("run.yaml"), overrides)
    return [line.strip() for line in changes(before, redact(unstructure(now))).splitlines()[1:]]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], []),
        (["out=elsewhere"], []),
        (["steps=400"], ["steps: 100 -> 400"]),
        (["data.options.path=b.jsonl"], ['data.options.path: "a.jsonl" -> "b.jsonl"']),
        (["rollout.sampling.temperature=0.5", "actor.lora.alpha=16"], 2),
        (["critic=null"], 1),
        (["data.options.limit=5"], ["data.options.limit: not set -> 5"]),
        (["data.options.api_key=hunter3"], []),
        (["loggers=[]"], ['loggers: [{"name": "wandb", "options": {"api_key": "<redacted>"}}] -> []']),
        (["imports=['\\e[31m']"], ['imports: [] -> ["\\\\e[31m"]']),
    ],
)
def test_every_key_that_changed_is_told_old_and_new(before: Path, overrides: list[str], told: list[str] | int) -> None:
    """Nothing else is, and no secret."""
    found = changed(before, *overrides)

    assert (len(found) if isinstance(told, int) else found) == told
    assert "hunter" not in "".join(found)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("seed=2", "order of the prompts"),
        ("data.shuffle=false", "order of the prompts"),
        ("actor.lora=null", "other parameters"),
        ("actor.lora.rank=8", "other parameters"),
        ("actor.lora.targets=[k_proj]", "other parameters"),
    ],
)
def test_what_must_not_change_is_refused_with_its_reason(before: Path, override: str, why: str) -> None:
    """Named with both values; what else changed is told to be no obstacle."""
    with pytest.raises(RunFolderError) as caught:
        changed(before, override, "steps=400")

    key = override.partition("=")[0]
    what, told = str(caught.value).partition("why: ")[::2]
    assert f"{key}: " in what and " -> " in what and "steps" not in what
    assert why in told and f"give {key} the old value" in told and "accepted: steps: 100 -> 400" in told


def test_a_critic_cannot_come_within_a_run(before: Path) -> None:
    """There is no state to give it."""
    before.write_text(dump_config(load_config(before.with_name("run.yaml"), ["critic=null"])))

    with pytest.raises(RunFolderError, match="no training state"):
        changed(before)


def test_a_configuration_that_cannot_be_read_stops_no_resume(before: Path) -> None:
    """The run's own file may be given instead of it; that nothing was compared is told."""
    before.write_text("{")

    assert "is not known" in changes(before, {})


def test_keys_that_are_younger_than_the_run_are_no_change(before: Path) -> None:
    """An older version wrote fewer of them: they had their defaults."""
    text = before.read_text()
    before.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("deterministic:")))

    assert before.read_text() != text
    assert changed(before) == []
