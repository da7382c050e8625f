"""`areal new backend` gives a package that the real command certifies at level 0, for every role, without an edit."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from areal_conformance.new.command import NOUNS, write_backend
from areal_conformance.probes.distributions import write_distribution
from areal_conformance.run.record import read_record

AREAL = [sys.executable, "-m", "areal_core.cli.main"]
ENTRY = '[[known]]\ncheck = "static.import.lihgt"\nkind = "bug"\nmatch = "x"\nreason = "x"\nissue = "x"\n'


def installed(folder: Path, role: str) -> Path:
    """Write the package `areal_fresh` and the metadata that pip would; return what goes on PYTHONPATH."""
    package = write_backend("fresh", role, folder)
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    write_distribution(
        package / "src", project["name"], version=project["version"], entry_points=project["entry-points"]
    )
    return package / "src"


def run(folder: Path, role: str, source: Path) -> subprocess.CompletedProcess[str]:
    """Run the static checks in an empty folder, as the command that `areal new` prints."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH", ""))))
    words = ("conformance", "run", "--backend", "fresh", "--role", role, "--level", "0", "--report", "out")
    return subprocess.run(
        [*AREAL, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("role", NOUNS)
def test_a_new_backend_passes_the_static_checks(role: str, tmp_path: Path) -> None:
    """Success, with every check a pass and none missing: an author begins on green."""
    ended = run(tmp_path / "empty", role, installed(tmp_path, role))
    assert ended.returncode == 0, ended.stdout + ended.stderr

    record = read_record(tmp_path / "empty" / "out")
    assert {row.id: str(row.outcome) for row in record.checks} == {row.id: "pass" for row in record.checks}
    assert (record.verdict, record.subject.origin) == ("success", "areal-fresh 0.1.0")


def test_the_workflow_of_a_new_backend_makes_the_same_run(tmp_path: Path) -> None:
    """Its step is the command that passes here; what it keeps is what that wrote."""
    source = installed(tmp_path, "scheduler")
    (file,) = source.parent.rglob("conformance.yml")
    assert file.relative_to(source.parent) == Path(".github/workflows/conformance.yml")
    told = yaml.safe_load(file.read_text(encoding="utf-8"))
    steps = {step.get("name"): step for step in told["jobs"]["certify"]["steps"]}
    (tmp_path / "areal").write_text(f'#!/bin/sh\nexec {sys.executable} -m areal_core.cli.main "$@"\n', encoding="utf-8")
    (tmp_path / "areal").chmod(0o755)

    path = os.pathsep.join((str(source), os.environ.get("PYTHONPATH", "")))
    commands = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": path, "GITHUB_STEP_SUMMARY": "summary.md"}
    for name in ("check", "summary"):
        script = ["bash", "-euc", steps[name]["run"]]
        subprocess.run(script, cwd=tmp_path, env={**os.environ, **told["env"], **commands}, timeout=240, check=True)

    kept = tmp_path / steps["keep the report and its badge"]["with"]["path"]
    assert read_record(kept).verdict == "success"
    assert (kept / "badge.svg").is_file()
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == (kept / "report.md").read_text(encoding="utf-8")


def test_the_ledger_of_a_new_backend_is_read(tmp_path: Path) -> None:
    """It lies where the suite looks: an entry for no check is refused, not passed over."""
    source = installed(tmp_path, "transport")
    (ledger,) = source.parent.rglob("conformance.toml")
    ledger.write_text(f"{ENTRY}expires = 2999-01-31\n", encoding="utf-8")

    ended = run(tmp_path / "empty", "transport", source)

    assert ended.returncode == 2
    assert str(ledger) in ended.stderr
    assert "did you mean static.import.light" in ended.stderr


def test_a_module_of_the_current_folder_is_not_taken_for_the_backend(tmp_path: Path) -> None:
    """Nor by the processes that checks start."""
    source = installed(tmp_path, "transport")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "areal_fresh.py").write_text("raise SystemExit(4)\n", encoding="utf-8")

    ended = run(tmp_path / "empty", "transport", source)

    assert ended.returncode == 0, ended.stdout + ended.stderr
