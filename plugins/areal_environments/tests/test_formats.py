"""Task folders are read as the real packages harbor and terminal-bench read them, in a process of their own Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_environments.task_folders import read_task
from areal_environments.task_sandbox import test_states as states_of
from areal_environments.testing.packages import interpreter

from .tasks import TOML, harbor_task, terminal_bench_task

pytestmark = pytest.mark.environments
Theirs = Callable[[str, object], Any]  # Any: JSON


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    """Yield who asks the packages."""
    command = [interpreter("harbor"), str(Path(__file__).with_name("their_readers.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(kind: str, value: object) -> Any:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([kind, str(value)]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        with process.stdin:
            yield ask


@pytest.mark.parametrize(
    "more",
    [
        "",
        'docker_image = "debian:12"\n',
        'network_mode = "no-network"\n',
        "allow_internet = false\n",
        'workdir = "/w"\n',
    ],
)
def test_harbor_reads_the_same(tmp_path: Path, theirs: Theirs, more: str) -> None:
    """Instruction, image, times, sizes, network, variables, and the script of tests."""
    path = harbor_task(tmp_path, toml=TOML + more)
    read = theirs("harbor", path)
    ours = read_task(path)

    assert path / "tests" / ours.tests[-1] == Path(read.pop("tests"))
    assert ours.instruction.strip() == read.pop("instruction")
    assert {name: getattr(ours, name) for name in read} == read


def test_the_task_that_harbor_makes_is_read(theirs: Theirs) -> None:
    """Its template, of the installed version."""
    template = Path(theirs("template", ""))
    ours = read_task(template)

    assert ours.build == template / "environment"
    assert ours.agent_timeout_s == theirs("harbor", template)["agent_timeout_s"]


def test_terminal_bench_reads_the_same(tmp_path: Path, theirs: Theirs) -> None:
    """Instruction, times, and the script of tests."""
    path = terminal_bench_task(tmp_path)
    read = theirs("terminal_bench", path)
    ours = read_task(path)

    assert path / ours.tests[-1] == Path(read.pop("tests"))
    assert {name: getattr(ours, name) for name in read} == read


STATES = ["PASSED", "FAILED", "ERROR", "XFAIL", "XPASS", "SKIPPED", "SKIPPED:"]
WORDS = st.sampled_from([*STATES, "-", "t.py::a", "t::b[x - y]", "::", "=", "x"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(st.lists(WORDS, max_size=5).map(" ".join), max_size=8))
def test_terminal_bench_reads_the_same_of_what_tests_print(theirs: Theirs, lines: list[str]) -> None:
    """Whatever stands in the summary."""
    said = "\n".join(["before", "== short test summary info ==", *lines])

    assert states_of(said) == theirs("summary", said)
