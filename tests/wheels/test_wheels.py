"""What is released: every distribution builds, holds what it needs, says what it is; a first run works from wheels."""

from __future__ import annotations

import json
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .clean import PROJECTS, ROOT, Clean, name_of
from .conftest import Wheels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = [name_of(project) for project in PROJECTS]
LOCAL = ("core", "devices", "algorithms", "config", "torch", "worker", "local")
FIRST_RUN = (*LOCAL, "serving", "tasks", "trainer", "hub", "report", "episodes", "reference", "fsdp")
"""What `areal-core[quickstart]` brings."""


def metadata(wheel: Path) -> Message:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        return HeaderParser().parsestr(archive.read(name).decode())


def requirements(wheel: Path, extra: str) -> set[Requirement]:
    """Return what a wheel depends on with one extra, or none."""
    stated = (Requirement(text) for text in metadata(wheel).get_all("Requires-Dist", []))
    return {each for each in stated if each.marker is None or each.marker.evaluate({"extra": extra})}


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_holds_every_file_of_its_package(wheels: Wheels, name: str) -> None:
    """Presets, templates, locks, ledgers and `py.typed` are data that a source tree has for nothing."""
    (project,) = [project for project in PROJECTS if name_of(project) == name]
    source = project / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheels[name]) as archive:
        held = set(archive.namelist())

    assert files - held == set()
    assert f"{name.replace('-', '_').replace('conformance_proof', 'proof')}/py.typed" in held


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_says_what_it_is(wheels: Wheels, name: str) -> None:
    """Licence with its text, classifiers, addresses, words to find it by, a description, the Python it wants."""
    said = metadata(wheels[name])
    addresses = {line.partition(",")[0] for line in said.get_all("Project-URL", [])}
    with zipfile.ZipFile(wheels[name]) as archive:
        (licence,) = [entry for entry in archive.namelist() if entry.endswith("/licenses/LICENSE")]
        text = archive.read(licence).decode()

    assert (said["License-Expression"], said["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert text == (ROOT / "LICENSE").read_text()
    assert {"Typing :: Typed", "Development Status :: 3 - Alpha"} <= set(said.get_all("Classifier", []))
    assert {"Repository", "Documentation", "Changelog"} == addresses
    assert said["Summary"] and "reinforcement-learning" in said["Keywords"]
    assert said["Description-Content-Type"] == "text/markdown"


@pytest.mark.parametrize("name", NAMES)
def test_no_distribution_or_package_of_ours_is_called_areal(wheels: Wheels, name: str) -> None:
    """The name belongs to the original system; both can be installed beside each other."""
    with zipfile.ZipFile(wheels[name]) as archive:
        top = {entry.partition("/")[0] for entry in archive.namelist()}

    assert name.startswith("areal-")
    assert "areal" not in top


@pytest.mark.parametrize("name", NAMES)
def test_what_a_wheel_needs_of_ours_exists(wheels: Wheels, name: str) -> None:
    """Every requirement that names one of ours names an extra it has and a version that is built."""
    for text in metadata(wheels[name]).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.name in wheels:
            other = metadata(wheels[requirement.name])
            assert requirement.specifier.contains(other["Version"]), text
            assert requirement.extras <= set(other.get_all("Provides-Extra", [])), text


@pytest.mark.parametrize(("extra", "brings"), [("local", LOCAL), ("quickstart", FIRST_RUN)])
def test_an_extra_of_the_core_brings_what_it_says(wheels: Wheels, extra: str, brings: tuple[str, ...]) -> None:
    """Followed through every requirement, it leads to these distributions of ours and no other."""
    reached, todo = {("areal-core", "")}, [("areal-core", extra), ("areal-core", "")]
    while todo:
        name, asked = todo.pop()
        for requirement in requirements(wheels[name], asked):
            if requirement.name in wheels:
                new = {(requirement.name, each) for each in ("", *requirement.extras)} - reached
                reached |= new
                todo += new

    assert {name for name, _ in reached} == {f"areal-{short}" for short in brings}


def test_the_first_run_works_from_wheels(wheels: Wheels, tmp_path: Path) -> None:
    """In a clean environment, without the repository: the listing is whole, three steps are trained and reported."""
    clean = Clean.make(tmp_path)
    clean.install(*(wheels[f"areal-{short}"] for short in FIRST_RUN))

    where = clean.run("python", "-c", "import areal_core, areal_fsdp; print(areal_core.__file__, areal_fsdp.__file__)")
    listing = json.loads(clean.run("areal", "backends", "--json").stdout)
    absent = clean.run("areal", "backends", "archon", expected=1)
    code = "from areal_tasks.tiny import make_spell_model; make_spell_model(Path('start'), seed=1)"
    clean.run("python", "-c", f"from pathlib import Path; {code}")
    # The model before its warm start, which takes a minute of its own and is kept in the user's cache.
    clean.run("areal", "quickstart", "--model", "start", "--steps", "3", "--out", "out")

    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert str(ROOT) not in where.stdout
    assert {row["origin"].partition(" ")[0] for row in listing} <= {f"areal-{short}" for short in FIRST_RUN}
    assert "error" not in {key for row in listing for key in row}
    assert "fix: pip install areal-archon\n" in absent.stderr
    assert (summary["status"], summary["steps"]) == ("finished", 3)


def test_a_run_without_a_scheduler_is_refused_with_the_extra_that_brings_one(wheels: Wheels, tmp_path: Path) -> None:
    """The core and two engines are installed; what is missing for one machine is one line."""
    clean = Clean.make(tmp_path)
    clean.install(*(wheels[f"areal-{short}"] for short in FIRST_RUN if short not in ("local", "report")))
    code = "from areal_torch.testing.models import make_tiny_model; make_tiny_model(Path('model'))"
    clean.run("python", "-c", f"from pathlib import Path; {code}")

    (tmp_path / "run.yaml").write_text(
        "data: {name: jsonl, options: {path: x}}\nrollout: {reward: {name: exact_match}}"
    )
    done = clean.run("areal", "train", "run.yaml", "--dry-run", "model.path=model", expected=1)

    assert "pip install 'areal-core[local]'" in done.stderr
