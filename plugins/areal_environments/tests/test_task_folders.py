"""What a task folder says, and which ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.contract.errors import DatasetError
from areal_environments.task_folders import read_task
from areal_environments.task_sandbox import test_states as states_of

from .tasks import TOML, YAML, harbor_task, terminal_bench_task


def test_a_task_of_harbor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image or its Dockerfile, variables from the run's environment, older names of sizes, the network."""
    monkeypatch.setenv("TOKEN", "abc")
    toml = TOML.replace("memory_mb = 256\nstorage_mb = 32", 'memory = "1.5G"\nstorage = "64M"\nallow_internet = false')
    toml += 'workdir = "/srv"\n[environment.env]\nTOKEN = "${TOKEN}"\nOTHER = "${UNSET_NAME:-x y}"\nPLAIN = "a${b}"\n'
    task = read_task(harbor_task(tmp_path, toml=toml, image=True))
    named = read_task(harbor_task(tmp_path, "named", toml=TOML + 'docker_image = "debian:12"\n', image=True))

    assert (task.name, task.image, task.build) == ("greeting", "", tmp_path / "greeting" / "environment")
    assert task.environment == {"TOKEN": "abc", "OTHER": "x y", "PLAIN": "a${b}"}
    assert (task.memory_mb, task.disk_mb, task.network, task.workdir) == (1536, 64, False, "/srv")
    assert (task.agent_timeout_s, task.test_timeout_s, task.test_environment) == (900.0, 700.0, {"EXPECTED": "hello"})
    assert (named.image, named.build, named.network) == ("debian:12", None, True)


def test_a_task_of_terminal_bench_is_read(tmp_path: Path) -> None:
    """Its tests are run by its script and read from what they print."""
    task = read_task(terminal_bench_task(tmp_path))

    assert (task.instruction, task.tests, task.parsed) == (
        "Write hello to the file greeting.\n",
        ("bash", "run-tests.sh"),
        True,
    )
    assert (task.agent_timeout_s, task.test_timeout_s) == (900.0, 700.0)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[[steps]]\nname = "a"\n', "needs steps"),
        ('[verifier.environment]\ndocker_image = "x"\n', "container of their own"),
        ("os = 'windows'\n", "needs Windows"),
        ("gpus = 1\n", "needs accelerators"),
    ],
)
def test_a_task_of_harbor_that_needs_more_is_refused(tmp_path: Path, more: str, says: str) -> None:
    """By name, with what it needs and how to leave it out."""
    with pytest.raises(DatasetError, match=says) as caught:
        read_task(harbor_task(tmp_path, toml=TOML + more))
    assert "greeting" in caught.value.what and "exclude" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("more", "says"),
    [("parser_name: swebench\n", "parser swebench"), ("run_tests_in_same_shell: true\n", "own shell")],
)
def test_a_task_of_terminal_bench_that_needs_more_is_refused(tmp_path: Path, more: str, says: str) -> None:
    """As those of Harbor."""
    with pytest.raises(DatasetError, match=says):
        read_task(terminal_bench_task(tmp_path, yaml=YAML + more))


def test_several_containers_are_refused(tmp_path: Path) -> None:
    """In both formats."""
    harbor, bench = harbor_task(tmp_path, "a"), terminal_bench_task(tmp_path, "b")
    (harbor / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    (bench / "docker-compose.yaml").write_text("services: {client: {}, db: {}}\n")

    for path in (harbor, bench):
        with pytest.raises(DatasetError, match="several containers"):
            read_task(path)


@pytest.mark.parametrize("spoiled", ["task.toml", "tests/test.sh", "instruction.md"])
def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, spoiled: str) -> None:
    """With the file's own error."""
    path = harbor_task(tmp_path)
    (path / spoiled).unlink()
    if spoiled == "task.toml":
        (path / spoiled).write_text("[")

    with pytest.raises(DatasetError, match="no task folder that can be read") as caught:
        read_task(path)
    assert caught.value.why


def test_a_variable_that_is_not_set_is_told(tmp_path: Path) -> None:
    """As Harbor does."""
    with pytest.raises(DatasetError) as caught:
        read_task(harbor_task(tmp_path, toml=TOML + '[environment.env]\nKEY = "${UNSET_NAME}"\n'))
    assert "UNSET_NAME" in str(caught.value.why)


def test_only_the_summary_of_tests_counts() -> None:
    """Not what a test prints before it."""
    lines = ["PASSED t.py::a[1 - 2]", "FAILED t.py::b - x - y", "ERROR t.py::c", "==="]
    said = "\n".join(["FAILED a::b", "=== short test summary info ===", *lines])

    assert states_of("PASSED t.py::a") == {}
    assert states_of(said) == {"a[1 - 2]": True, "b - x": False, "c": False}


@pytest.mark.parametrize(
    ("lines", "workdir"),
    [
        ("FROM a", "/app"),
        ("FROM a\nWORKDIR /testbed", "/testbed"),
        ("FROM a\nWORKDIR /srv\nRUN x\n  workdir  src/b", "/srv/src/b"),
        ('FROM a\nWORKDIR "/my place"', "/my place"),
        ("FROM a AS b\nWORKDIR /build\nFROM c\nRUN x", "/app"),
        ("FROM a\nWORKDIR $HOME/x", "/app"),
    ],
)
def test_a_task_begins_where_its_image_does(tmp_path: Path, lines: str, workdir: str) -> None:
    """As its Dockerfile says; unless the task says otherwise."""
    harbor, bench = harbor_task(tmp_path, "a", image=True), terminal_bench_task(tmp_path, "b")
    said = harbor_task(tmp_path, "c", toml=TOML + 'workdir = "/w"\n', image=True)
    for place in (harbor / "environment", said / "environment", bench):
        (place / "Dockerfile").write_text(f"# syntax\n{lines}\n")

    assert [read_task(each).workdir for each in (harbor, bench, said)] == [workdir, workdir, "/w"]
