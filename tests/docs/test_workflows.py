"""The repository's workflows and its action name only what there is; GitHub reads them, nobody here does."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github").glob("**/*.yml"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
NAMES = [str(path.relative_to(ROOT / ".github")) for path in FILES]

_INPUT = re.compile(r"\binputs\.([\w-]+)")
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
_MAJOR = re.compile(r"^[\w.-]+/[\w./-]+@v\d+$")

Node = dict[Any, Any]  # Any: yaml; `on` is read as True


def load(path: Path) -> Node:
    """Return a workflow or an action, with `on` under its name."""
    document: Node = yaml.safe_load(path.read_text())
    if True in document:
        document["on"] = document.pop(True)
    return document


def steps(document: Node) -> Iterator[Node]:
    """Yield every step, and every job that calls a workflow, which has the same shape."""
    yield from document.get("runs", {}).get("steps", ())
    for job in document.get("jobs", {}).values():
        yield from [job] if "uses" in job else job["steps"]


def declared(document: Node) -> Node:
    """Return the inputs an action or a reusable workflow takes."""
    inputs: Node = document.get("inputs") or (document.get("on", {}).get("workflow_call") or {}).get("inputs", {})
    return inputs


def local(uses: str) -> Path:
    """Return the file behind `./...`; `.areal` is where the reusable workflow checks this repository out."""
    path = ROOT / uses.removeprefix("./").removeprefix(".areal/")
    return path if path.suffix == ".yml" else path / "action.yml"


def test_every_workflow_is_there() -> None:
    """Lint, tests, wheels, documentation, and the suite for other repositories."""
    assert {"lint", "test", "wheels", "docs", "conformance"} <= {path.stem for path in WORKFLOWS}


def test_every_suite_that_needs_no_engine_and_no_download_runs_in_a_workflow() -> None:
    """A suite that only a person starts is out of date before anybody notices."""
    suites = set(re.findall(r"^(test[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(step.get("run", "") for path in WORKFLOWS for step in steps(load(path)))

    needy = {"test-long", "test-vllm", "test-sglang", "test-ascend", "test-environments"}
    assert needy < suites
    part = {"test-runs"}  # of test-slow
    assert suites - needy - part == set(re.findall(r"make (test[\w-]*)", commands)) - needy


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_the_repository_and_no_more_and_ends(path: Path) -> None:
    """Every workflow has read permission only; every job that runs commands has a time limit."""
    document = load(path)

    unbounded = [name for name, job in document["jobs"].items() if "steps" in job and "timeout-minutes" not in job]
    assert (document["permissions"], unbounded) == ({"contents": "read"}, [])


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_make_targets_and_files_of_a_command_exist(path: Path) -> None:
    """A renamed target or a moved folder is noticed here, not by the next push."""
    makefile = (ROOT / "Makefile").read_text()
    missing = []
    for step in steps(load(path)):
        for line in step.get("run", "").replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "make":
                targets = [word for word in words[1:] if "=" not in word]
                missing += [t for t in targets if not re.search(rf"^{re.escape(t)}:", makefile, re.MULTILINE)]
            for word in words:
                in_checkout = re.search(r"\$areal/([\w/]+)", word)
                missing += [word] if in_checkout and not (ROOT / in_checkout[1] / "pyproject.toml").exists() else []
        for word in _EXPRESSION.sub("", str(step.get("with", {}).get("install", ""))).split():
            missing += [word] if not (ROOT / word.partition("[")[0]).exists() else []

    assert missing == []


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_is_used_is_pinned_by_its_major_version_and_gets_inputs_it_declares(path: Path) -> None:
    """Actions of others carry `@vN`; ours exist, know every input given and get every one they require."""
    faults = []
    for step in steps(load(path)):
        uses = step.get("uses", "")
        if uses.startswith("./"):
            inputs, given = declared(load(local(uses))), set(step.get("with", {}))
            required = {name for name, spec in inputs.items() if spec.get("required")}
            faults += [f"{uses}: {name}" for name in (given - set(inputs)) | (required - given)]
        elif uses and not _MAJOR.match(uses):
            faults.append(uses)

    assert faults == []


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_inputs_are_declared_described_and_never_pasted_into_a_shell(path: Path) -> None:
    """An expression inside `run` would let its value be a command; values go through the environment."""
    document = load(path)
    inputs = declared(document)

    assert set(_INPUT.findall(path.read_text())) <= set(inputs)
    assert [name for name, spec in inputs.items() if not spec.get("description")] == []
    assert [step["run"] for step in steps(document) if "${{" in step.get("run", "")] == []


def test_the_action_and_the_reusable_workflow_agree() -> None:
    """What both take has the same default, so that the page of the tutorial describes either."""
    action = declared(load(ROOT / ".github/actions/conformance/action.yml"))
    workflow = declared(load(ROOT / ".github/workflows/conformance.yml"))

    both = sorted(set(action) & set(workflow))
    assert {"backend", "role", "level", "device", "python", "install"} <= set(both)
    assert {n: action[n].get("default") for n in both} == {n: workflow[n].get("default") for n in both}


def test_the_action_brings_every_package_of_ours_that_it_needs() -> None:
    """While nothing is published, pip finds a sibling only where the same command names its folder."""
    (command,) = [
        s["run"] for s in steps(load(ROOT / ".github/actions/conformance/action.yml")) if s.get("name") == "install"
    ]
    asked = set(re.findall(r"\$areal(?:/([\w/]+))?(?:\[(\w+)\])?\"", command))
    projects = {folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder, _ in asked}

    wanted = [
        Requirement(line)
        for folder, extra in asked
        for line in projects[folder]["dependencies"] + projects[folder].get("optional-dependencies", {}).get(extra, [])
    ]
    ours = {requirement.name for requirement in wanted if requirement.name.startswith("areal-")}
    assert len(asked) > 3
    assert ours - {project["name"] for project in projects.values()} == set()


def test_the_tutorial_lists_every_input_of_the_action() -> None:
    """A reader needs no other page to call it."""
    page = (ROOT / "docs/tutorial/certify-a-backend.md").read_text()

    table = page.partition("| input | default |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert named == set(declared(load(ROOT / ".github/actions/conformance/action.yml")))
