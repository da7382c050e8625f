"""What the documentation shows is true: run files load, commands parse, files register, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import frozen

from areal_core.cli.main import make_app, plugin_commands
from areal_core.config.backend import parse_backend
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.config.schema import RunConfig
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry
from areal_evaluate.config import load_tasks
from areal_evaluate.plan import plan_evaluation
from areal_local.rewards.child import judge
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.testing.models import make_tiny_model
from areal_torch.tokenizers import character_tokenizer

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "plugins/*/README.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml")) + [preset_path(p.stem) for p in ROOT.glob("examples/offline/*.yaml")]
TUTORIAL = ROOT / "docs/tutorial/train-your-first-model.md"
BACKEND = ROOT / "docs/tutorial/write-a-backend.md"
AGENTS = ROOT / "docs/how-to/agents.md"
TASKS = "tasks.yaml"
"""Title of a block that holds benchmarks, not a run."""

_FENCE = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(#[^)]*)?\)")


@frozen
class Block:
    """One fenced block of a page."""

    page: str
    kind: str
    title: str
    text: str


def blocks(kind: str, *pages: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a kind."""
    for page in pages or PAGES:
        for match in _FENCE.finditer(page.read_text()):
            if match["kind"] == kind:
                yield Block(str(page.relative_to(ROOT)), kind, match["title"] or "", match["text"])


def titled(page: Path, title: str) -> str:
    """Return the one Python block of a page with a title."""
    (text,) = [block.text for block in blocks("python", page) if block.title == title]
    return text


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Return (page, words) of every command line of a program in the `sh` blocks."""
    found = []
    for block in blocks("sh"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name == program:
                found.append((block.page, words[1:]))
    return found


def check_options(config: RunConfig, registry: Registry) -> None:
    """Check the options of every plugin the configuration names against its config class, building nothing."""
    rollout, data, held_out = config.rollout, config.data, config.evaluation.data
    named = [
        ("dataset", data.name, data.options),
        ("dataset", held_out.name if held_out else "", held_out.options if held_out else {}),
        ("reward", rollout.reward.name, rollout.reward.options),
        ("workflow", rollout.workflow.name, rollout.workflow.options),
        ("train", parse_backend(config.actor.backend).name, config.actor.options),
        ("infer", parse_backend(rollout.backend).name, rollout.options),
        ("objective", config.algorithm.objective.name, config.algorithm.objective.options),
    ]
    for role, name, options in named:
        if name:
            registry.options(role, name, options, f"{name}.options")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_its_options_are_read(path: Path) -> None:
    """No key of an example is one nobody reads."""
    registry = Registry()
    config = load_config(path)
    for file in config.imports:
        registry.add_file(ROOT / file)
    check_options(config, registry)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with room for every example; what else it is makes no difference to a plan."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), max_position=4096)


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a model that takes images."""
    return make_tiny_model(tmp_path_factory.mktemp("seeing"), kind="qwen2_5_vl", max_position=4096)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_lacks_nothing_but_its_model(path: Path, model: Path, seeing: Path) -> None:
    """Given a model, two GPUs and a server where one is asked for, it plans, without a warning."""
    overrides = [f"model.path={seeing if path.stem.endswith('-vl') else model}"]
    config = load_config(path, overrides)
    if Registry().describe("infer", parse_backend(config.rollout.backend).name).environment is not None:
        config = load_config(path, [*overrides, "rollout.options.url=http://127.0.0.1:8000"])

    plan = make_plan(config, Registry(), {"cuda": 2})

    assert ([role.role for role in plan.roles], plan.warnings) == ([*config.train_roles, "rollout"], ())


def test_offline_examples_are_the_presets_of_the_quickstart() -> None:
    """The folder is a link, so that the two cannot differ."""
    assert (ROOT / "examples/offline").resolve() == preset_path("spell").parent.resolve()


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if b.title != TASKS], ids=lambda block: block.page)
def test_a_run_file_in_the_docs_loads(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `yaml` block is a part of a run file, options included; those with a file of their own are tested below."""
    for page in (AGENTS, ROOT / block.page):  # an agent that a block names is there
        for match in _FENCE.finditer(page.read_text()):
            if match["title"]:
                (tmp_path / Path(match["title"]).name).write_text(match["text"])
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(block.text)
    config = load_config(file)

    if not config.imports:
        check_options(config, Registry())


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if b.title == TASKS], ids=lambda block: block.page)
def test_a_tasks_file_in_the_docs_plans(block: Block, tmp_path: Path, model: Path) -> None:
    """Every benchmark of it is whole, options included."""
    file = tmp_path / TASKS
    file.write_text(block.text)

    plan = plan_evaluation(model, load_tasks(file), Registry())

    assert plan.benchmarks and plan.warnings == ()


@pytest.mark.parametrize(("page", "words"), commands("areal"), ids=lambda value: str(value)[:60])
def test_an_areal_command_in_the_docs_parses(page: str, words: list[str]) -> None:
    """Commands, flags and overrides exist; nothing is run."""
    app = make_app(plugin_commands())

    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)

    for override in bound.args[1:] if words[0] == "train" else ():
        if "..." not in override:
            load_config(None, [override])


@pytest.mark.parametrize(("page", "words"), commands("make"), ids=lambda value: str(value)[:60])
def test_a_make_command_in_the_docs_is_a_target(page: str, words: list[str]) -> None:
    """Targets and variables are those of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    targets = [word for word in words if "=" not in word]
    variables = [word.partition("=")[0] for word in words if "=" in word]

    assert [t for t in targets if not re.search(rf"^{re.escape(t)}:", makefile, re.MULTILINE)] == []
    assert [v for v in variables if f"{v} ?=" not in makefile] == []


def test_there_are_commands_to_check() -> None:
    """The three checks above do not pass for want of anything to check."""
    assert min(len(commands("areal")), len(commands("make")), len(list(blocks("yaml")))) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    """Relative links resolve, in the repository as on the site."""
    targets = [match["target"] for match in _LINK.finditer(page.read_text())]

    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


def test_the_tutorials_file_registers_and_fits_its_run_file(tmp_path: Path) -> None:
    """What the reader is told to write is found under the names the run file uses."""
    (tmp_path / "my_run.py").write_text(titled(TUTORIAL, "my_run.py"))
    (run,) = [yaml.safe_load(block.text) for block in blocks("yaml", TUTORIAL)]
    assert run["imports"] == ["my_run.py"]
    file = tmp_path / "my_run.yaml"
    file.write_text(yaml.safe_dump(run))
    registry = Registry()

    listings = registry.add_file(tmp_path / "my_run.py")

    assert {(x.role, x.name) for x in listings} == {("dataset", "twice"), ("reward", "letters_right")}
    check_options(load_config(file), registry)


@pytest.mark.parametrize(
    ("completion", "stop", "value"), [("sunsun", "stop", 1.0), ("sunxxx", "stop", 0.5), ("sunsun", "length", 0.0)]
)
def test_the_tutorials_reward_pays_as_it_says(tmp_path: Path, completion: str, stop: str, value: float) -> None:
    """It returns what a reward process accepts: the share of right letters, nothing for a cut-off answer."""
    (tmp_path / "my_run.py").write_text(titled(TUTORIAL, "my_run.py"))
    registry = Registry()
    registry.add_file(tmp_path / "my_run.py")
    function: Any = registry.build("reward", "letters_right")  # Any: a user's function

    row = {"prompt": "sun>", "answer": "sunsun"}
    result = judge(function(prompt="sun>", completion=completion, completion_ids=[], stop_reason=stop, row=row))

    assert (result.value, result.status) == (value, "ok")


@pytest.mark.parametrize("number", range(2))
def test_a_users_file_of_the_how_to_registers(tmp_path: Path, number: int) -> None:
    """The reward with options and the workflow are found."""
    text = [block.text for block in blocks("python", ROOT / "docs/how-to/your-own-task.md")][number]
    (tmp_path / "mine.py").write_text(text)
    registry = Registry()

    (listing,) = registry.add_file(tmp_path / "mine.py")

    assert registry.build(listing.role, listing.name) is not None


def test_rows_to_learn_from_become_tokens_as_the_page_says() -> None:
    """A demonstration and a preference, with a character tokenizer."""
    names: dict[str, Any] = {"tokenizer": character_tokenizer("0123456789+= ")}  # Any: a module's names
    exec(next(blocks("python", ROOT / "docs/how-to/data.md")).text, names)

    ids, mask = names["ids"], names["loss_mask"]
    assert names["tokenizer"].decode([each for each, on in zip(ids, mask, strict=True) if on]) == " 4<eos>"
    assert names["chosen"].ids == ids
    assert names["rejected"].ids[:7] == ids[:7]


def test_the_curriculum_of_the_page_mixes_as_it_says(tmp_path: Path) -> None:
    """One set at first, two from a third on, all three at last."""
    (tmp_path / "curriculum.py").write_text(titled(ROOT / "docs/how-to/data.md", "curriculum.py"))
    registry = Registry()
    registry.add_file(tmp_path / "curriculum.py")
    rows: Any = registry.build("dataset", "curriculum", {"steps": 10, "prompts_per_step": 3})

    assert [sorted({row["set"] for row in rows[start : start + 9]}) for start in (0, 10, 20)] == [
        ["2"],
        ["2", "3"],
        ["2", "3", "4"],
    ]


def test_the_manifest_of_the_backend_tutorial_is_one() -> None:
    """It is accepted as it stands."""
    names: dict[str, Any] = {}  # Any: a module's names
    exec(titled(BACKEND, "manifest.py"), names)

    assert isinstance(names["MANIFEST"], Manifest)


def test_the_backend_tutorials_test_passes(tmp_path: Path) -> None:
    """It runs against the engine it names."""
    names: dict[str, Any] = {}  # Any: a module's names
    exec(titled(BACKEND, "test_engine.py"), names)

    names["test_a_step_changes_the_loss_and_not_the_version"](tmp_path)


def test_the_backend_tutorials_overlay_builds() -> None:
    """A name is replaced for the length of a block."""
    (text,) = [block.text for block in blocks("python", BACKEND) if "overlay(" in block.text]
    names: dict[str, Any] = {}  # Any: a module's names
    exec(text, names)

    assert names["score"](prompt="") == 1.0
