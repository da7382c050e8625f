"""The commands of the page on Kubernetes are taken as they stand there, and it names every option."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml

from areal_core.cli.main import main
from areal_ray.kube.command import kube_command
from areal_tasks.tiny import make_spell_model

from .schema import check

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


@pytest.mark.parametrize("command", [line for line in LINES if line.startswith("areal ")])
def test_a_command_of_the_page_writes_a_manifest(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `run.yaml` is the quickstart's."""
    make_spell_model(tmp_path / "model", seed=1)
    example = (ROOT / "examples" / "offline" / "spell.yaml").read_text()
    (tmp_path / "run.yaml").write_text(example.replace('path: ""', "path: model"))
    monkeypatch.chdir(tmp_path)

    assert main([*shlex.split(command)[1:], *([] if " -o " in command else ["-o", "job.yaml"])]) == 0

    for document in yaml.safe_load_all((tmp_path / "job.yaml").read_text()):
        check(document)


def test_the_page_tells_of_every_option() -> None:
    """An option that is added is added there too."""
    parameters = inspect.signature(kube_command).parameters.values()
    options = {f"--{each.name.replace('_', '-')}" for each in parameters if each.kind is each.KEYWORD_ONLY}

    assert {option for option in options - {"--output"} if option not in PAGE} == set()
