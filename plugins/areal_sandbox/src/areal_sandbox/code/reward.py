"""The reward `code`: tests of the row, run against the program of a completion.

Knows: rows, and how the ends of tests become a number and its parts.
Does not know: how a test runs (`cases`), or where (a sandbox provider).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from areal_agentic.sandbox import Ending, Ran, Sandbox, SandboxError, SandboxProvider
from areal_core.contract.data import StopReason
from areal_core.contract.errors import DatasetError, RewardFailed
from areal_core.plugins.registry import current_registry
from areal_sandbox.code.cases import ENVIRONMENT, PROGRAM, Case, case_of_pair, case_of_test
from areal_sandbox.code.config import CodeConfig
from areal_sandbox.code.extraction import extract_program

Row = Mapping[str, Any]  # Any: the data set decides
_FINISHED = (StopReason.STOP, StopReason.TOOL_CALLS)


@define(eq=False)
class CodeReward:
    """Runs the tests of a row, each as a command of its own, in one sandbox for the completion."""

    config: CodeConfig = field(factory=CodeConfig)
    _provider: SandboxProvider = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make sure that there are sandboxes, before a run starts."""
        config = self.config
        path = "rollout.reward.options.sandbox_options"
        provider: Any = current_registry().build("sandbox", config.sandbox, config.sandbox_options, path)
        self._provider = provider
        try:
            self._provider.check()
        except SandboxError as error:
            raise RewardFailed(f"the reward code has no sandbox: {error.what}", why=error.why, fix=error.fix) from error

    def columns(self) -> Sequence[str]:
        """Return no column: a row has tests, or inputs and outputs."""
        return ()

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> dict[str, float]:
        """Return the score as `value`, and shares of tests by their ends. Called in a reward process.

        Raises:
            DatasetError: the row has no tests, or one that cannot run.
            SandboxError: the sandbox failed, which says nothing about the program.
        """
        cases = self._cases(row)
        program = extract_program(completion)
        if not program.strip() or (self.config.finished and StopReason(stop_reason) not in _FINISHED):
            return self._scored(["missing"] * len(cases))
        return self._scored(asyncio.run(self._tried(program, cases)))

    def _cases(self, row: Row) -> list[Case]:
        config = self.config
        if config.tests in row:
            tests = row[config.tests]
            texts = [tests] if isinstance(tests, str) else tests
            cases = [case_of_test(text, config.module, apart=config.isolated) for text in texts]
        elif config.inputs in row and config.outputs in row:
            inputs, outputs = row[config.inputs], row[config.outputs]
            if len(inputs) != len(outputs):
                raise DatasetError(f"the row has {len(inputs)} {config.inputs} and {len(outputs)} {config.outputs}",
                                   fix="give one output for each input")  # fmt: skip
            cases = [case_of_pair(given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
        else:
            raise DatasetError(
                f"the row has no column {config.tests!r}, nor {config.inputs!r} and {config.outputs!r}",
                why=f"the reward code runs them; there are {', '.join(sorted(map(str, row)))}",
                fix="name the columns in rollout.reward.options, or map them with data.options.columns",
            )
        if not cases:
            raise DatasetError("the row has no tests", why="a completion without a test has no score",
                               fix="leave the row out")  # fmt: skip
        return cases

    async def _tried(self, program: str, cases: Sequence[Case]) -> list[str]:
        """Return how each test ended."""
        ends = []
        deadline = time.monotonic() + self.config.total_s
        sandbox = await self._provider.open(self.config.limits, image=self.config.image)
        try:
            await sandbox.write(PROGRAM, program.encode(errors="replace"))
            for number, case in enumerate(cases, 1):
                left = deadline - time.monotonic()
                ends.append("timeout" if left <= 0 else _end(number, case, await _run(sandbox, case, left)))
        finally:
            await sandbox.close()
        return ends

    def _scored(self, ends: Sequence[str]) -> dict[str, float]:
        """Return value and components: for each end its share of the tests, how many there are, and each if asked."""
        shares = {name: ends.count(name) / len(ends) for name in ("passed", "failed", "timeout", "memory", "missing")}
        value = shares["passed"] if self.config.score == "share" else float(shares["passed"] == 1.0)
        every = {f"test/{number}": float(end == "passed") for number, end in enumerate(ends, 1)}
        return {"value": value, **shares, "tests": float(len(ends)), **(every if self.config.each else {})}


async def _run(sandbox: Sandbox, case: Case, left: float) -> Ran:
    return await sandbox.run(case.command, stdin=case.stdin, environment=ENVIRONMENT, timeout_s=left)


def _end(number: int, case: Case, ran: Ran) -> str:
    """Return the name of a test's end, which is that of a component.

    Raises:
        DatasetError: the test is no Python, or needs a module that is not there.
    """
    if why := case.broken(ran):
        raise DatasetError(
            f"test {number} of the row cannot run",
            why=why,
            fix="correct the row, or name a Python that has the module in rollout.reward.options.sandbox_options",
        )
    if ran.ending in (Ending.TIMEOUT, Ending.MEMORY):
        return ran.ending.value
    return "passed" if case.passed(ran) else "failed"
