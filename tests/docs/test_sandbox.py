"""The pages about sandboxes: their programs print what they say, their tables are those of the code."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

from areal_agentic.sandbox import Limits, Ran, SandboxProvider
from areal_core.contract.workflow import RewardInput
from areal_core.plugins.registry import Registry
from areal_local.rewards.child import Scorer
from areal_sandbox.code.config import CodeConfig
from areal_sandbox.code.reward import CodeReward
from areal_sandbox.containers.config import ContainerConfig
from areal_sandbox.hosted.config import DaytonaConfig, E2BConfig
from areal_sandbox.local.config import LocalSandboxConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/sandbox.md").read_text()
EXAMPLE = ROOT / "examples/sandboxes/logged.py"
_FENCE = re.compile(r"^```(?:python title=\"([^\"]+)\"|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(_FENCE.findall(PAGE))


def options(after: str) -> set[str]:
    """Return what the first table after a text names; several options may share a row."""
    table = PAGE.partition(f"\n{after}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("after", "config"),
    [
        ("## Limits", Limits),
        ("`local`", LocalSandboxConfig),
        ("`docker`, `podman`", ContainerConfig),
        ("`e2b`", E2BConfig),
        ("`daytona`", DaytonaConfig),
        ("## The reward `code`", CodeConfig),
    ],
)
def test_the_options_are_those_there_are(after: str, config: Any) -> None:
    """No more and no less."""
    assert options(after) == set(attrs.fields_dict(config))


def test_every_provider_is_on_the_page() -> None:
    """And none that is not there."""
    listed = set(re.findall(r"^\| `(\w+)` \| .*? \| .*? \|$", PAGE.partition("## Limits")[0], re.MULTILINE))

    assert listed == {listing.name for listing in Registry().listings("sandbox") if not listing.proof}


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """As a file of its own."""
    file = tmp_path / "by_hand.py"
    file.write_text(FILES["by_hand.py"])
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, timeout=60)

    assert (done.stdout, done.returncode) == (FILES[""], 0), done.stderr


@pytest.mark.parametrize(
    ("row", "program"),
    [
        ("with_tests", "def add(a, b):\n    return a + b"),
        ("with_pairs", "print(sum(map(int, input().split())))"),
    ],
)
def test_the_rows_of_the_page_are_scored(row: str, program: str) -> None:
    """Both kinds, by the parts that the page names."""
    names: dict[str, Any] = {}  # Any: a module's names
    exec(FILES["rows.py"], names)
    result = CodeReward()("", f"```python\n{program}\n```", (), "stop", names[row])

    assert (result["value"], result["tests"]) == (1.0, 2.0)
    assert set(result) == {"value", "passed", "failed", "timeout", "memory", "missing", "tests"}
    assert all(f"`{name}`" in PAGE for name in result)


def test_the_reward_is_one_that_a_reward_process_calls() -> None:
    """By its name, as a run does: the score, its parts, and a row that is broken as the failure of one completion."""
    reward: Any = Registry().build("reward", "code", {"score": "all", "each": True})
    asked = RewardInput(
        prompt="", completion="x = 1", completion_ids=(), stop_reason="stop", row={"tests": ["assert x == 1"]}
    )
    right, wrong, broken = Scorer(reward)([asked, evolve(asked, completion="x = 2"), evolve(asked, row={"tests": "("})])

    assert (right.value, right.components["test/1"]) == (1.0, 1.0)
    assert (wrong.value, wrong.components["test/1"]) == (0.0, 0.0)
    assert "cannot run" in str(broken)


def test_a_provider_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """It is found by its name, and does what it says."""
    registry = Registry()
    registry.add_file(EXAMPLE)
    provider: Any = registry.build("sandbox", "logged", {})

    async def used() -> list[Ran]:
        sandbox = await provider.open(Limits(timeout_s=5.0))
        try:
            return [await sandbox.run(["echo", "1"]), await sandbox.run(["no-such-program"])]
        finally:
            await provider.close()

    assert isinstance(provider, SandboxProvider)
    assert [(ran.exit_code, ran.stdout) for ran in asyncio.run(used())] == [(0, "1\n"), (127, "")]
    assert "echo 1: exited after 0." in capsys.readouterr().err
