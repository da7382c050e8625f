"""A third party writes a renderer from the documentation alone, names it in a run, and has it certified."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from areal_core.cli.main import main
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.plugins.registry import Registry
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/write-a-renderer.md").read_text(encoding="utf-8")


def command(start: str) -> list[str]:
    """Return the words of the page's command that begins so, without `areal`."""
    (line,) = re.findall(rf"^areal {start}.*$", PAGE, re.MULTILINE)
    return shlex.split(line)[1:]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with nothing but the files that the page shows."""
    for name in re.findall(r'^--8<-- "(.+)"$', PAGE, re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_renderer_of_the_page_is_certified(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command of the page, with the verdict that it names."""
    code = main(command("conformance run"))

    told = capsys.readouterr().out
    (verdict,) = re.findall(r"^The verdict is `(\w+)`", PAGE, re.MULTILINE)
    assert (code, f"verdict: {verdict}" in told) == (0, True), told


def test_the_renderer_of_the_page_is_named_in_a_run(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the overrides of the page: a dry run writes the first prompt with it."""
    run = yaml.safe_load(preset_path("spell").read_text(encoding="utf-8"))
    run["model"]["path"] = str(make_spell_model(there / "model", seed=1))
    run["rollout"]["workflow"] = {"name": "multi_turn"}
    (there / "run.yaml").write_text(yaml.safe_dump(run), encoding="utf-8")

    code = main([*command("train"), "device=cpu", "--dry-run"])

    told = capsys.readouterr()
    assert code == 0, told.err
    assert re.search(r"prompt +\d+ tokens, as the model reads the first row", told.out), told.out


def test_the_yaml_of_the_page_is_planned(there: Path) -> None:
    """`template` with the options that are shown."""
    (shown,) = re.findall(r'```yaml title="renderer.yaml"\n(.*?)```', PAGE, re.DOTALL)
    (there / "my_agent.py").write_text("async def run(row, base_url, api_key): return 1.0\n", encoding="utf-8")
    base = yaml.safe_load(preset_path("spell").read_text(encoding="utf-8"))
    base["rollout"].update(yaml.safe_load(shown)["rollout"])
    base["model"]["path"] = str(make_spell_model(there / "model", seed=1))
    registry = Registry()

    plan = make_plan(load_config(base={**base, "device": "cpu"}), registry, {})

    options = plan.config.rollout.workflow.options
    assert registry.build("renderer", options["renderer"], options["renderer_options"])
