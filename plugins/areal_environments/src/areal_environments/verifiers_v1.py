"""Environments of verifiers' second interface: tasksets, played by harnesses, from 0.4.

Knows: their tasks, episodes and traces.
Does not know: how an environment is found.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

from attrs import define, field

from areal_core.contract.errors import DatasetError, EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_environments.played import Row


def module_name(name: str) -> str:
    """Return the module of an environment's id: `owner/my-environment@1.2` is `my_environment`; a file is itself."""
    return name if name.endswith(".py") else name.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")


def load(taskset: str, arguments: Mapping[str, Any]) -> object:
    """Return the environment of a taskset, which is a module that is imported already."""
    v1 = importlib.import_module("verifiers.v1")
    given = {**arguments, "taskset": {**arguments.get("taskset", {}), "id": taskset}}
    return v1.load_environment(v1.resolve_env_config(given))


@define(eq=False)
class Environment:
    """One `verifiers.v1.Env`."""

    made: Any  # the library is not typed here
    _tasks: list[Any] = field(factory=list, init=False)
    _coming: Iterator[Any] | None = field(default=None, init=False)

    def count(self, split: str, size: int) -> int:
        """Return how many tasks there are, `size` at most; 0 is all of them.

        Raises:
            DatasetError: there is no end of them; a split is asked for.
        """
        taskset = self.made.taskset
        name = type(taskset).__name__
        if split != "train":
            fix = "leave split out, and choose its tasks by arguments: {taskset: {...}}, as its configuration has them"
            raise DatasetError(f"{name} has no split {split}", why="a taskset is one list of tasks", fix=fix)
        if not size and not getattr(taskset, "bounded", not taskset.INFINITE):  # 0.3 has INFINITE alone
            raise DatasetError(f"{name} has no end", why="options.size is 0", fix="set options.size")
        self._until(size or sys.maxsize)
        return len(self._tasks)

    def row(self, split: str, index: int) -> Row:
        """Return a row: the text of the prompt, and the task's number."""
        self._until(index + 1)
        return {"prompt": self._tasks[index].data.prompt_text, "task": index}

    def _until(self, count: int) -> None:
        """Read so many tasks, or all there are."""
        if self._coming is None:
            self._coming = iter(self.made.taskset)
        while len(self._tasks) < count:
            try:
                self._tasks.append(next(self._coming))
            except StopIteration:
                return

    async def play(self, row: Row, base_url: str, api_key: str, *, raised_is_zero: bool = False) -> RewardResult:
        """Return what one episode was worth: the mean over its agents that are trained, with their metrics.

        A reward function that raised has failed the episode in the library already, whatever `raised_is_zero`.
        """
        v1 = importlib.import_module("verifiers.v1")
        self._until(row["task"] + 1)
        with _in_environment(api_key) as variable:
            client = v1.EvalClientConfig(base_url=base_url, api_key_var=variable)
            context = v1.ModelContext(model="policy", client=client)
            own = copy(self.made)  # it holds the server between harness and policy, one for each key
            async with own.serving():
                episode = await own.run_episode(self._tasks[row["task"]], context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            why = "; ".join(f"{error.type}: {error.message}" for error in errors)[:600]
            raise EpisodeFailed("the rollout of the environment failed", why=why or "it is not ok, and says no more")
        trained = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
        components: dict[str, float] = {}
        for trace in trained:
            told = {**trace.metrics, **{name: each and each.value for name, each in trace.rewards.items()}}
            components |= {name: float(value) for name, value in told.items() if value is not None}
        return RewardResult(value=sum(trace.reward for trace in trained) / len(trained), components=components)


@contextmanager
def _in_environment(key: str) -> Iterator[str]:
    """Name a variable of the process that holds the key: verifiers takes keys from nowhere else."""
    variable = f"AREAL_EPISODE_{secrets.token_hex(8)}"
    os.environ[variable] = key
    try:
        yield variable
    finally:
        del os.environ[variable]
