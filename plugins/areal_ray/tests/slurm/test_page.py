"""The commands of the page on Slurm are taken as they stand there, and its table names every option."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from areal_core.cli.main import main
from areal_ray.slurm.command import slurm_command
from areal_tasks.tiny import make_spell_model

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "how-to" / "slurm.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_writes_a_script(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as a dry run, where `run.yaml` is the quickstart's; one that goes on has something to go on with."""
    make_spell_model(tmp_path / "model", seed=1)
    example = (ROOT / "examples" / "offline" / "spell.yaml").read_text()
    (tmp_path / "run.yaml").write_text(example.replace('path: ""', "path: model"))
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    if "--resume" in words:
        (tmp_path / "runs" / "quickstart").mkdir(parents=True)
        (tmp_path / "runs" / "quickstart" / "loop.json").write_text("{}")

    assert main([*words[1:], *([] if "--dry-run" in words else ["--dry-run"])]) == 0

    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n")
    assert "fsdp:d" in shown.err


def test_the_page_tells_of_every_option() -> None:
    """An option that is added is added there too."""
    parameters = inspect.signature(slurm_command).parameters.values()
    options = {f"--{each.name.replace('_', '-')}" for each in parameters if each.kind is each.KEYWORD_ONLY}

    assert {option for option in options if option not in PAGE} == set()
