"""The reward `code`: each test's end is told, and no program passes a test without doing what it asks."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from plugins.areal_sandbox.tests.programs import CHEATS, FAITHFUL

from areal_agentic.sandbox import Limits, SandboxError
from areal_core.contract.errors import DatasetError, RewardFailed
from areal_core.plugins.registry import default_registry
from areal_sandbox.code.config import CodeConfig
from areal_sandbox.code.extraction import extract_program
from areal_sandbox.code.reward import CodeReward

SMALL = CodeConfig(limits=Limits(timeout_s=10.0, memory_mb=256, processes=16))
ADD = "def add(a, b):\n    return a + b\n"
TWO = ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]


@pytest.fixture(scope="module")
def reward(checked: None) -> CodeReward:
    """Give the reward with its defaults."""
    return CodeReward(SMALL)


@pytest.fixture(scope="module")
def together(checked: None) -> CodeReward:
    """Give the reward that runs tests in the program's process."""
    return CodeReward(evolve(SMALL, isolated=False))


@pytest.fixture(params=["apart", "together"])
def either_way(request: pytest.FixtureRequest, reward: CodeReward, together: CodeReward) -> CodeReward:
    """Give the reward with programs in a process of their own, and in that of the tests."""
    return reward if request.param == "apart" else together


def scored(reward: CodeReward, program: str, tests: Any, stop: str = "stop", **row: Any) -> dict[str, float]:
    """Return what a completion is worth. Any: a column."""
    return reward("", f"Here it is:\n```python\n{program}\n```\n", (), stop, {"tests": tests, **row})


def passes(reward: CodeReward, program: str, test: str) -> bool:
    """Whether one test passes."""
    return scored(reward, program, test)["value"] == 1.0


def test_the_value_is_the_share_of_tests_passed(reward: CodeReward) -> None:
    """And every end has its share."""
    right, wrong = scored(reward, ADD, TWO), scored(reward, "def add(a, b): return 3", TWO)

    assert (right["value"], right["passed"], right["tests"]) == (1.0, 1.0, 2.0)
    assert (wrong["value"], wrong["passed"], wrong["failed"]) == (0.5, 0.5, 0.5)


def test_all_or_nothing_and_each(checked: None) -> None:
    """With `score: all` a test that fails costs everything; `each` tells which one it was."""
    strict = CodeReward(evolve(SMALL, score="all", each=True))
    wrong = scored(strict, "def add(a, b): return 3", TWO)

    assert (wrong["value"], wrong["passed"], wrong["test/1"], wrong["test/2"]) == (0.0, 0.5, 1.0, 0.0)
    assert scored(strict, ADD, TWO)["value"] == 1.0


def test_input_and_output(reward: CodeReward) -> None:
    """A program that reads and prints; white space at the ends of lines is no difference, an exit code is."""
    row = {"inputs": ["1 2\n", "3 4\n", "5 6\n"], "outputs": ["3", "7\n", "12"]}
    program = "```\na, b = map(int, input().split())\nprint(a + b, end='  \\n\\n')\n```"

    assert reward("", program, (), "stop", row)["value"] == 2 / 3
    assert reward("", program[:-3] + "exit(1)\n```", (), "stop", row)["failed"] == 1.0


@pytest.mark.parametrize(
    ("program", "seconds", "end"),
    [
        ("while True: pass", 2.0, "timeout"),
        ("hold = []\nwhile True: hold.append('x' * (1 << 20)); time.sleep(0.001)", 120.0, "memory"),
    ],
)
def test_limits_are_ends_of_their_own(checked: None, program: str, seconds: float, end: str) -> None:
    """Of each test."""
    hurried = CodeReward(evolve(SMALL, limits=Limits(timeout_s=seconds, memory_mb=128), total_s=2 * seconds + 60.0))
    found = scored(hurried, f"import time\n{program}", TWO[:1] * 2)

    assert (found["value"], found[end]) == (0.0, 1.0)


def test_what_was_not_reached_counts_as_timed_out(checked: None) -> None:
    """One second for three tests that take longer."""
    hurried = CodeReward(evolve(SMALL, total_s=1.0))

    assert scored(hurried, "import time\ntime.sleep(5)\n" + ADD, TWO * 2)["timeout"] == 1.0


def test_no_program_and_a_cut_completion(checked: None) -> None:
    """All tests are missing; what the token budget cut counts unless `finished`."""
    careful = CodeReward(evolve(SMALL, finished=True))

    assert careful("", "```sh\nls\n```", (), "stop", {"tests": TWO})["missing"] == 1.0
    assert scored(careful, ADD, TWO, stop="length")["missing"] == 1.0
    assert scored(careful, ADD, TWO, stop="stop")["value"] == 1.0


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_success_without_the_result(reward: CodeReward, cheat: str) -> None:
    """Neither in a statement, nor in a function, nor in unittest, nor where a test compares the other way round."""
    tests = [
        "assert add(1, 2) == 3",
        "import unittest\nclass Test(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)",
    ]
    if "everything" in cheat or "names" in cheat:
        tests += [
            "assert 3 == add(1, 2)",
            "def test_add():\n    assert add(1, 2) in (3, 4)",
            "assert sorted([add(2, 1)]) == [3]",
            "assert 2 < add(1, 2) < 4",
            "assert abs(add(1, 2) - 3) < 1e-9 or abs(3 - add(1, 2)) < 1e-9 or add(1, 2) / 3 == 1.0",
            "import math\nassert math.isclose(add(1, 2), 3)",
        ]
    found = scored(reward, CHEATS[cheat], tests)

    assert (found["value"], found["passed"]) == (0.0, 0.0)


@pytest.mark.parametrize("cheat", ["exits", "exits at once", "exits in the test", "raises an exit", "prints success",
                                   "at exit", "reads the pipes", "skips"])  # fmt: skip
def test_in_one_process_neither(together: CodeReward, cheat: str) -> None:
    """What prints, ends or reads pipes does not pass where the test shares the program's process either."""
    assert scored(together, CHEATS[cheat], TWO)["value"] == 0.0


@pytest.mark.parametrize("case", FAITHFUL)
def test_a_right_program_passes(either_way: CodeReward, case: str) -> None:
    """With all that programs and tests hand each other, in two processes as in one."""
    program, test = FAITHFUL[case]

    assert passes(either_way, program, test)


@pytest.mark.parametrize(
    "test",
    ["def test_one():\n    assert add(1, 2) == 4", "import unittest\nclass T(unittest.TestCase):\n    def test(self): "
     "self.assertEqual(add(1, 2), 4)", "import unittest\nclass T(unittest.TestCase):\n    pass"],
)  # fmt: skip
def test_tests_that_are_only_defined_are_run(either_way: CodeReward, test: str) -> None:
    """So that they fail where they should."""
    assert not passes(either_way, ADD, test)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("assert add(1, 2 == 3", "never closed"),
        ("import no_such_module\nassert add(1, 2) == 3", "no_such_module"),
        ("def test_one(tmp_path):\n    assert add(1, 2) == 3", "test_one takes arguments"),
        ("\0", "null bytes"),
    ],
)
def test_a_test_that_cannot_run_is_no_fault_of_the_program(reward: CodeReward, test: str, why: str) -> None:
    """The episode fails, and says which test it was."""
    with pytest.raises(DatasetError, match="test 2 of the row cannot run") as refused:
        scored(reward, ADD, [TWO[0], test])

    assert why in refused.value.why


def test_a_module_the_program_lacks_is_its_own_fault(reward: CodeReward) -> None:
    """At its top, and in a function."""
    assert not passes(reward, "import no_such_module\n" + ADD, TWO[0])
    assert not passes(reward, "def add(a, b):\n    import no_such_module", TWO[0])


@pytest.mark.parametrize("program", ["def add(a, b) return", "raise ValueError", "\0", "\ud800", "def other(): pass"])
def test_a_program_that_is_none_fails(reward: CodeReward, program: str) -> None:
    """Whatever keeps it from being one."""
    assert scored(reward, program, TWO)["failed"] == 1.0


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"answer": 4}, "no column 'tests'"),
        ({"tests": []}, "no tests"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
    ],
)
def test_rows_without_tests_are_refused(reward: CodeReward, row: dict[str, Any], match: str) -> None:
    """A completion that nothing tests has no score."""
    with pytest.raises(DatasetError, match=match):
        reward("", "```\n1\n```", (), "stop", row)


def test_without_a_sandbox_there_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told when it is built, before a run starts."""
    monkeypatch.setenv("PATH", "/no/such")
    with pytest.raises(RewardFailed, match="no sandbox") as refused:
        CodeReward(SMALL)

    assert isinstance(refused.value.__cause__, SandboxError)
    assert "apt-get install" in refused.value.fix


def test_it_is_found_by_name(checked: None) -> None:
    """With its options, those of the sandbox among them."""
    options = {"score": "all", "limits": {"memory_mb": 128}, "sandbox_options": {"readable": ["/usr"]}}
    built: Any = default_registry().build("reward", "code", options)

    assert (built.config.score, built.config.limits.memory_mb) == ("all", 128)


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("no\n```python\nx = 1\n```\nor\n```py\nx = 2\n```\nend", "x = 2\n"),
        ("```python\nx = 1\n```\n```sh\nls\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("  ```python\n  x = 1\n  ```", "  x = 1\n"),
        ("```sh\nls\n```", ""),
        ("", ""),
    ],
)
def test_the_program_is_the_last_block_of_python(completion: str, program: str) -> None:
    """Or all of it, where nothing is fenced."""
    assert extract_program(completion) == program
