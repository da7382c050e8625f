"""Folders with a task for a shell: those of Harbor (task.toml) and of Terminal-Bench (task.yaml).

Knows: both formats, as far as one container, one instruction and one script of tests go; the rest is refused.
Does not know: sandboxes, or how a reward is read.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from attrs import Factory, frozen

from areal_core.contract.errors import DatasetError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-(.*))?\}", re.DOTALL)
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(\S.*)$", re.MULTILINE | re.IGNORECASE)
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_COMPOSE = ("docker-compose.yaml", "singularity-compose.yaml")
Table = Mapping[str, Any]  # Any: TOML and YAML


@frozen(kw_only=True)
class TaskFolder:
    """One task, whichever its format.

    Example: TaskFolder(name="hello", path=Path("tasks/hello"), instruction="Write ...", tests=("bash", "test.sh"))
    """

    name: str
    path: Path
    instruction: str
    tests: tuple[str, ...]
    """The command that runs the tests, in the folder they were put."""
    parsed: bool = False
    """What the tests print says whether they passed; else they write a reward."""
    image: str = ""
    """The container's image, "" where the task names none."""
    build: Path | None = None
    """The folder with the Dockerfile of that image, if it has to be built."""
    workdir: str = "/app"
    environment: Mapping[str, str] = Factory(dict)
    test_environment: Mapping[str, str] = Factory(dict)
    network: bool = True
    agent_timeout_s: float = 600.0
    test_timeout_s: float = 600.0
    memory_mb: int = 2048
    disk_mb: int = 1024


def is_task(path: Path) -> bool:
    """Whether a folder is a task's."""
    return (path / "task.toml").is_file() or (path / "task.yaml").is_file()


def read_task(path: Path) -> TaskFolder:
    """Return the task of a folder.

    Raises:
        DatasetError: it is no task's, cannot be read, or needs more than one container, instruction or script of tests.
    """
    try:
        return _harbor(path) if (path / "task.toml").is_file() else _terminal_bench(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        if isinstance(error, DatasetError):
            raise
        why = f"{type(error).__name__}: {error}"
        raise DatasetError(f"{path} is no task folder that can be read", why=why, fix="mend or leave it out") from error


def _harbor(path: Path) -> TaskFolder:
    read = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
    agent, verifier, place = (read.get(name, {}) for name in ("agent", "verifier", "environment"))
    separate = "environment" in verifier or verifier.get("environment_mode") == "separate"
    _refuse(path, "steps", bool(read.get("steps")) or (path / "steps").is_dir())
    _refuse(path, "a container of their own for the tests", separate or bool(verifier.get("collect")))
    _refuse(path, "several containers", any((path / "environment" / name).is_file() for name in _COMPOSE))
    _refuse(path, "Windows", str(place.get("os", "linux")).lower() != "linux")
    _refuse(path, "accelerators or MCP servers", any(place.get(name) for name in ("gpus", "tpu", "mcp_servers")))
    if not (path / "tests" / "test.sh").is_file():
        raise FileNotFoundError("tests/test.sh")
    dockerfile = path / "environment" / "Dockerfile"
    image = place.get("docker_image") or ""
    mode = place.get("network_mode") or ("no-network" if place.get("allow_internet") is False else "public")
    return TaskFolder(
        name=str(read.get("task", {}).get("name") or path.name).rsplit("/", 1)[-1],
        path=path,
        instruction=(path / "instruction.md").read_text(encoding="utf-8"),
        tests=("bash", "test.sh"),
        image=image,
        build=dockerfile.parent if dockerfile.is_file() and not image else None,
        workdir=place.get("workdir") or _workdir(dockerfile),
        environment=_resolved(place.get("env", {})),
        test_environment=_resolved(verifier.get("env", {})),
        network=mode == "public",
        agent_timeout_s=float(agent.get("timeout_sec") or 600.0),
        test_timeout_s=float(verifier.get("timeout_sec", 600.0)),
        memory_mb=place.get("memory_mb") or _megabytes(place.get("memory", "2G")),
        disk_mb=place.get("storage_mb") or _megabytes(place.get("storage", "1G")),
    )


def _terminal_bench(path: Path) -> TaskFolder:
    read = yaml.safe_load((path / "task.yaml").read_text(encoding="utf-8"))
    parser = read.get("parser_name", "pytest")
    _refuse(path, f"the parser {parser}", parser != "pytest")
    _refuse(path, "tests in the agent's own shell", bool(read.get("run_tests_in_same_shell")))
    compose = path / "docker-compose.yaml"
    services = yaml.safe_load(compose.read_text(encoding="utf-8"))["services"] if compose.is_file() else {}
    _refuse(path, "several containers", len(services) > 1)
    if not (path / "run-tests.sh").is_file():
        raise FileNotFoundError("run-tests.sh")
    return TaskFolder(
        name=path.name,
        path=path,
        instruction=str(read["instruction"]),
        tests=("bash", "run-tests.sh"),
        parsed=True,
        build=path if (path / "Dockerfile").is_file() else None,
        workdir=_workdir(path / "Dockerfile"),
        agent_timeout_s=float(read.get("max_agent_timeout_sec", 360.0)),
        test_timeout_s=float(read.get("max_test_timeout_sec", 60.0)),
    )


def _refuse(path: Path, what: str, needed: bool) -> None:
    if needed:
        raise DatasetError(
            f"the task {path.name} needs {what}",
            why="here a task has one container, one instruction and one script of tests",
            fix="leave it out: data.options.exclude",
        )


def _workdir(dockerfile: Path) -> str:
    """Return where a container of a Dockerfile begins, /app where it does not say."""
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    place = PurePosixPath("/")
    for named in _WORKDIR.findall(text.rpartition("\nFROM ")[2]):
        place /= named.strip().strip("\"'")
    return "/app" if "$" in str(place) or place == PurePosixPath("/") else str(place)


def _resolved(given: Mapping[str, str]) -> dict[str, str]:
    """Return variables with ${NAME} and ${NAME:-default} taken from the run's own environment."""
    return {name: _value(str(text)) for name, text in given.items()}


def _value(text: str) -> str:
    found = _VARIABLE.fullmatch(text)
    if found is None:
        return text
    value = os.environ.get(found[1], found[2])
    if value is None:
        raise ValueError(f"the environment variable {found[1]} is not set")
    return value


def _megabytes(size: str) -> int:
    return int(float(size[:-1]) * _UNITS[size[-1].upper()])
