"""`areal new workflow`: one file that is found, planned and run as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_conformance.new.command import write_workflow
from areal_core.cli.main import main
from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import ConfigError
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import Registry
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model


def settings(folder: Path) -> list[str]:
    """Return the overrides that run what was written on the quickstart's untrained model."""
    model = make_spell_model(folder / "model", seed=1)
    return [
        f"model.path={model}",
        f"imports=[{write_workflow('mine', folder)}]",
        "rollout.workflow.name=mine",
        f"out={folder / 'run'}",
        "device=cpu",
    ]


def test_the_file_is_a_workflow_that_a_run_takes(tmp_path: Path) -> None:
    """Its options are checked as any other's, and it is built."""
    config = load_config(preset_path("spell"), [*settings(tmp_path), "rollout.workflow.options.max_turns=3"])
    registry = Registry()

    plan = make_plan(config, registry, {})

    assert plan.config.rollout.workflow.name == "mine" and plan.warnings == ()
    workflow = registry.build("workflow", "mine", {"max_turns": 3})
    assert workflow.config.max_turns == 3 and type(workflow).__name__ == "Mine"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_file_runs_as_it_stands(tmp_path: Path) -> None:
    """Two steps on the quickstart's model: wrong answers are told so, and the second ones trained on too."""
    small = ["steps=2", "rollout.prompts_per_step=2", "rollout.group_size=2", "evaluation.every_steps=0"]
    quick = [*small, "evaluation.before=false", "actor.backend=reference:d1"]

    assert train(load_config(preset_path("spell"), [*settings(tmp_path), *quick]), quiet=True) == 0

    steps = list(read_lines(tmp_path / "run/metrics.jsonl"))
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["episode/turns"] == 2.0 for step in steps)


def test_the_command_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints where the file is and the commands that follow."""
    assert main(["new", "workflow", "mine", "--folder", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert f"wrote {tmp_path / 'mine.py'}" in printed
    assert "rollout.workflow.name=mine" in printed


@pytest.mark.parametrize("name", ["Mine", "9lives", "my-workflow", "class", ""])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    """And nothing is written; nor over a file that is there."""
    with pytest.raises(ConfigError, match="cannot be the name of a workflow"):
        write_workflow(name, tmp_path)
    assert list(tmp_path.iterdir()) == []

    write_workflow("mine", tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        write_workflow("mine", tmp_path)
