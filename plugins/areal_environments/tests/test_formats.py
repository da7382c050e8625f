"""Task folders as the real packages harbor and terminal-bench read them.

Both need Python 3.12. What is used of them here, their models of a task and a parser, runs under 3.11 too once it finds
`typing.override` and is not led through terminal-bench's harness.
"""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_core.plugins.install import installed_version
from areal_environments.task_folders import read_task
from areal_environments.task_sandbox import test_states as states_of

from .tasks import TOML, harbor_task, terminal_bench_task

pytestmark = pytest.mark.environments


@pytest.fixture(scope="module", autouse=True)
def readable() -> typing.Iterator[None]:
    """Make the packages' modules importable."""
    with pytest.MonkeyPatch.context() as patch:
        if not hasattr(typing, "override"):
            patch.setattr(typing, "override", typing_extensions.override, raising=False)
        package = ModuleType("terminal_bench")
        package.__path__ = [str(Path(path, "terminal_bench")) for path in sys.path]
        patch.setitem(sys.modules, "terminal_bench", package)
        yield


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
def test_harbor_reads_the_same(tmp_path: Path, more: str) -> None:
    """Instruction, image, times, sizes, network, variables, and the script of tests."""
    from harbor.models.task.task import Task

    path = harbor_task(tmp_path, toml=TOML + more)
    ours, theirs = read_task(path), Task(path)
    place = theirs.config.environment

    assert ours.instruction.strip() == theirs.instruction.strip()
    assert ours.image == (place.docker_image or "")
    assert (ours.agent_timeout_s, ours.test_timeout_s) == (
        theirs.config.agent.timeout_sec,
        theirs.config.verifier.timeout_sec,
    )
    assert (ours.memory_mb, ours.disk_mb) == (place.memory_mb, place.storage_mb)
    assert ours.network == (place.network_mode.value == "public")
    assert ours.workdir == (place.workdir or "/app")
    assert ours.test_environment == theirs.config.verifier.env
    assert path / "tests" / ours.tests[-1] == theirs.paths.discovered_test_path


def test_the_task_that_harbor_makes_is_read(tmp_path: Path) -> None:
    """Its template, of the installed version."""
    import harbor

    template = Path(harbor.__file__).parent / "cli" / "template-task"
    ours = read_task(template)

    assert installed_version("harbor") and ours.build == template / "environment" and ours.agent_timeout_s == 900.0


def test_terminal_bench_reads_the_same(tmp_path: Path) -> None:
    """Instruction, times, and the script of tests."""
    from terminal_bench.handlers.trial_handler import TrialHandler

    path = terminal_bench_task(tmp_path)
    ours, theirs = read_task(path), TrialHandler(trial_name="a", input_path=path)

    assert (ours.instruction, ours.name) == (theirs.instruction, theirs.task_id)
    assert ours.agent_timeout_s == theirs.task.max_agent_timeout_sec
    assert ours.test_timeout_s == theirs.task.max_test_timeout_sec
    assert path / ours.tests[-1] == theirs.task_paths.run_tests_path


WORDS = st.sampled_from(
    [
        "PASSED",
        "FAILED",
        "ERROR",
        "XFAIL",
        "XPASS",
        "SKIPPED",
        "SKIPPED:",
        "-",
        "t.py::a",
        "t::b[x - y]",
        "::",
        "=",
        "x",
    ]
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(st.lists(WORDS, max_size=5).map(" ".join), max_size=8))
def test_terminal_bench_reads_the_same_of_what_tests_print(lines: list[str]) -> None:
    """Whatever stands in the summary."""
    from terminal_bench.parsers.base_parser import UnitTestStatus
    from terminal_bench.parsers.pytest_parser import PytestParser

    said = "\n".join(["before", "== short test summary info ==", *lines])
    theirs: dict[str, Any] = PytestParser().parse(said)

    assert states_of(said) == {name: state is UnitTestStatus.PASSED for name, state in theirs.items()}
