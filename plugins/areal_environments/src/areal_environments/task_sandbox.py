"""One task in one sandbox: its files, the policy's commands, the tests and what they say.

In an image the task's places are /app (or its own workdir), /tests and /logs. A sandbox without images has them in its
working folder; the variables APP_DIR, TEST_DIR and LOGS_DIR name them in both.

Knows: where a task's files belong, and how its reward is read.
Does not know: who gives commands, or what a provider is.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import tarfile
from pathlib import Path
from shlex import quote

from attrs import frozen

from areal_agentic.sandbox import Ending, Ran, Sandbox
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_environments.task_folders import TaskFolder

_SUMMARY = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_STATES = {"PASSED": True, "XFAIL": True, "SKIPPED": True, "FAILED": False, "XPASS": False, "ERROR": False}
"""What pytest says of a test, and whether that is passed."""
_MAX_COMMAND = 100_000
"""Linux takes arguments of 128 KiB at most."""
_NOT_COPIED = {"Dockerfile", "docker-compose.yaml", ".dockerignore"}


@frozen
class TaskSandbox:
    """A sandbox with a task in it."""

    task: TaskFolder
    sandbox: Sandbox
    root: str
    """What stands before /tests and /logs: nothing in an image, the working folder elsewhere."""

    @property
    def app(self) -> str:
        """Where commands run."""
        return f"{self.root}{self.task.workdir}"

    @property
    def variables(self) -> dict[str, str]:
        """What commands see of their environment."""
        places = {"APP_DIR": self.app, "TEST_DIR": f"{self.root}/tests", "LOGS_DIR": f"{self.root}/logs"}
        return {**places, **self.task.environment}

    @classmethod
    async def prepared(cls, task: TaskFolder, sandbox: Sandbox, *, image: bool) -> TaskSandbox:
        """Return the sandbox, ready for the policy; without an image the files of the task's environment are in it.

        Raises:
            EpisodeFailed: its files cannot be put there.
        """
        root = "" if image else (await sandbox.run(["pwd"])).stdout.strip()
        made = cls(task, sandbox, root)
        if not image:
            await made._put(task.path / "environment", made.app)
        return made

    async def run(self, command: str, timeout_s: float) -> Ran:
        """Run a shell command where the task has it run. What no shell could be given ends as a shell would say it."""
        if problem := _no_command(command):
            return Ran(ending=Ending.EXITED, exit_code=126, stdout="", stderr=f"sh: {problem}")
        return await self._shell(f"cd {quote(self.app)} 2>/dev/null; {command}", self.variables, timeout_s)

    async def tested(self) -> RewardResult:
        """Put the tests into the sandbox, run them, and return what they say. Tests that do not end have failed.

        Raises:
            EpisodeFailed: the tests ended and said nothing: a reward, or a summary of pytest.
        """
        tests, verifier = f"{self.root}/tests", f"{self.root}/logs/verifier"
        await self._needed(f"rm -rf {tests} {verifier}; mkdir -p {verifier}")
        await self._put(self.task.path / "tests", tests)
        if self.task.parsed:
            await self._put(self.task.path / self.task.tests[-1], tests)
        variables = {**self.variables, **self.task.test_environment}
        command = f"cd {quote(self.app)} 2>/dev/null; {self.task.tests[0]} {tests}/{self.task.tests[1]} 2>&1"
        ran = await self._shell(command, variables, self.task.test_timeout_s)
        if ran.ending != Ending.EXITED:
            return RewardResult(value=0.0, components={f"tests/{ran.ending}": 1.0})
        try:
            return _summary(ran.stdout) if self.task.parsed else await self._reward(verifier)
        except ValueError as error:
            last = f"; the last they wrote:\n{ran.stdout[-400:]}" if ran.stdout else ""
            raise EpisodeFailed(f"the tests of {self.task.name} gave no reward", why=f"{error}{last}") from error

    async def _reward(self, folder: str) -> RewardResult:
        """Return what the tests wrote as a reward: reward.json, else reward.txt."""
        for name, read in (("reward.json", json.loads), ("reward.txt", float)):
            found = await self._shell(f"cat {folder}/{name}", {}, 30.0)
            if found.ok:
                return rewarded(read(found.stdout))
        raise ValueError(f"there is neither {folder}/reward.json nor {folder}/reward.txt")

    async def _put(self, source: Path, target: str) -> None:
        """Copy a file or a folder's contents to a folder in the sandbox."""
        packed = await asyncio.to_thread(_packed, source)
        await self._needed(f"mkdir -p {quote(target)} && tar -xf - --no-same-owner -C {quote(target)}", packed)

    async def _needed(self, command: str, stdin: bytes = b"") -> None:
        ran = await self.sandbox.run(["sh", "-c", command], stdin=stdin)
        if not ran.ok:
            why = f"{ran.ending}, exit code {ran.exit_code}: {(ran.stderr or ran.stdout)[-400:]}"
            raise EpisodeFailed(f"the files of {self.task.name} cannot be put into the sandbox", why=why)

    async def _shell(self, command: str, variables: dict[str, str], timeout_s: float) -> Ran:
        return await self.sandbox.run(["sh", "-c", command], environment=variables, timeout_s=timeout_s)


def _no_command(command: str) -> str:
    """Return why a text cannot be the argument of a program, "" if it can."""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        return "the command is no text"
    if "\0" in command:
        return "the command holds a NUL character"
    return f"the command is longer than {_MAX_COMMAND} bytes" if size > _MAX_COMMAND else ""


def _packed(source: Path) -> bytes:
    """Return a file, or what is in a folder, as an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in [source] if source.is_file() else sorted(source.iterdir()) if source.is_dir() else []:
            if path.name not in _NOT_COPIED:
                archive.add(path, path.name)
    return packed.getvalue()


def rewarded(told: object) -> RewardResult:
    """Return a reward that tests wrote: a number, or named numbers with one called `reward`, or just one.

    Raises:
        ValueError: it is neither, or not finite.
    """
    named = told if isinstance(told, dict) else {"reward": told}
    numbers = {str(name): float(value) for name, value in named.items() if isinstance(value, int | float)}
    if len(numbers) < len(named) or not all(map(math.isfinite, numbers.values())):
        raise ValueError(f"a reward is finite numbers, not {str(told)[:200]}")
    if "reward" not in numbers and len(numbers) != 1:
        raise ValueError(f"none of {', '.join(numbers) or 'no rewards'} is called 'reward'")
    value = numbers.pop("reward", None)
    return RewardResult(value=numbers.popitem()[1] if value is None else value, components=numbers)


def _summary(said: str) -> RewardResult:
    """Return 1.0 if pytest's summary has no test that failed, as Terminal-Bench reads it, and the share that passed."""
    states = test_states(said)
    if not states:
        raise ValueError("they print no summary of pytest (-rA)")
    passed = sum(states.values()) / len(states)
    return RewardResult(value=float(passed == 1.0), components={"tests/passed": passed})


def test_states(said: str) -> dict[str, bool]:
    """Return each test of pytest's short summary, and whether it passed."""
    states: dict[str, bool] = {}
    *_, summary = ["", *_SUMMARY.split(said, maxsplit=1)[1:]]
    for line in summary.splitlines():
        if line.startswith("FAILED") and " - " in line:
            line = line.rsplit(" - ", 1)[0]
        state, _, name = line.strip().partition(" ")
        name = name.strip().split("::", 1)[-1]
        if name and state.strip(":") in _STATES:
            states[name] = _STATES[state.strip(":")]
    return states
