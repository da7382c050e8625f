"""Task folders of Harbor and Terminal-Bench: the data set and the workflow `harbor`.

Knows: which folders are rows, and how an episode goes: a sandbox, the policy at its shell, the tests.
Does not know: the formats (`task_folders`), what is in a sandbox (`task_sandbox`), how a shell is used (`shell_agent`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from attrs import Factory, define, field, frozen, validators

from areal_agentic.sandbox import Limits, Sandbox, SandboxError, SandboxProvider
from areal_agentic.user_function import check_function, user_function
from areal_core.contract.errors import ConfigError, DatasetError
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.registry import current_registry
from areal_environments.played import PlayedConfig, PlayedWorkflow, Row
from areal_environments.policy import conversation
from areal_environments.shell_agent import TOOL, work
from areal_environments.task_folders import TaskFolder, is_task, read_task
from areal_environments.task_sandbox import TaskSandbox

COLUMN = "task_folder"
_AGENT = "rollout.workflow.options.agent"
_ARGUMENTS = ("row", "base_url", "api_key", "run_command")
_FIX = "name a coroutine function of a file, called as run(row, base_url, api_key, run_command): FILE.py:run"


@frozen(kw_only=True)
class HarborRows:
    """Options of the data set `harbor`.

    Example: HarborRows(path="tasks", include=("git-*",), exclude=("git-multibranch",))
    """

    path: str = field(validator=validators.min_len(1))
    """A folder with a task, or with folders of tasks; task.toml is Harbor's, task.yaml Terminal-Bench's."""
    include: tuple[str, ...] = field(default=("*",), converter=tuple[str, ...])
    """Names of folders to take, as patterns of a shell."""
    exclude: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Names of folders to leave out."""


def rows(config: HarborRows) -> Sequence[Row]:
    """Return a row for each task, by name: {"prompt": the instruction, "task_folder": its path}.

    Raises:
        DatasetError: there are none, or one cannot be played here; says why.
    """
    top = Path(config.path).expanduser().resolve()
    folders = [top] if is_task(top) else sorted(path for path in top.glob("*") if is_task(path))
    taken = [path for path in folders if _any(config.include, path) and not _any(config.exclude, path)]
    if not taken:
        why = f"of {len(folders)} there, options include and exclude leave none" if folders else "none has task.toml"
        raise DatasetError(f"{top} holds no task folders", why=why, fix="correct data.options")
    return [{"prompt": read_task(path).instruction, COLUMN: str(path)} for path in taken]


def _any(patterns: Sequence[str], path: Path) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


@frozen(kw_only=True)
class HarborConfig(PlayedConfig):
    """Options of the workflow `harbor`.

    Example: HarborConfig(sandbox="docker", image="tasks/{name}", max_turns=20)
    """

    sandbox: str = "local"
    """Where tasks are done: a provider, as `areal backends --role sandbox` lists them."""
    sandbox_options: Mapping[str, Any] = field(
        default=Factory(dict), metadata={"role": "sandbox", "named_by": "sandbox"}
    )  # Any: the provider's own
    """Options of that provider."""
    image: str = ""
    """The image of tasks that name none but bring a Dockerfile; {name} is the task's."""
    network: bool = False
    """Let tasks that ask for the network have it."""
    max_memory_mb: int = field(default=4096, validator=validators.ge(16))
    """Of one sandbox, whatever the task asks for, in MiB."""
    sandboxes: int = field(default=8, validator=validators.ge(1))
    """Sandboxes at once; further episodes wait."""
    agent_timeout_s: float = field(default=7200.0, validator=validators.gt(0.0))
    """One episode, with what it waits for a sandbox; the times of the agent and of the tests are the task's own."""
    command_timeout_s: float = field(default=60.0, validator=validators.gt(0.0))
    """One command of the policy."""
    max_turns: int = field(default=32, validator=validators.ge(1))
    """Answers of an episode at most."""
    max_chars: int = field(default=4096, validator=validators.ge(64))
    """Of what the policy is told of a command's output; the middle is left out."""
    commands: str = field(default="tool", validator=validators.in_(("tool", "block")))
    """How the policy gives commands: by the tool `run`, or one in a block of ```sh in its answer."""
    agent: str = ""
    """In place of the policy at the shell, an agent of your own: FILE.py:FUNCTION, a coroutine function called as
    run(row, base_url, api_key, run_command), where `await run_command("ls")` gives `stdout`, `stderr`, `exit_code`."""

    def __attrs_post_init__(self) -> None:
        """Refuse an agent that is not there, while a run is planned."""
        if self.agent:
            check_function(self.agent, what=f"{_AGENT}={self.agent} is no agent", fix=_FIX)


def workflow(config: HarborConfig) -> PlayedWorkflow:
    """Return the workflow `harbor`: an episode is a task done in a sandbox, and worth what its tests say.

    Raises:
        ConfigError: there is no such agent.
        SandboxError: the provider makes no sandboxes here.
    """
    player = Player(config)
    return PlayedWorkflow(config, player.play, close=player.close)


@define(eq=False)
class Player:
    """Plays the episodes of a run."""

    config: HarborConfig
    _provider: SandboxProvider = field(init=False)
    _places: asyncio.Semaphore = field(init=False)
    _agent: Any = field(default=None, init=False)  # Any: the user's own

    def __attrs_post_init__(self) -> None:
        path = "rollout.workflow.options.sandbox_options"
        provider = current_registry().build("sandbox", self.config.sandbox, self.config.sandbox_options, path)
        assert isinstance(provider, SandboxProvider), f"{self.config.sandbox} makes no sandboxes"
        provider.check()
        self._provider, self._places = provider, asyncio.Semaphore(self.config.sandboxes)
        if name := self.config.agent:
            what = f"{_AGENT}={name} is no agent"
            self._agent = user_function(name, what=what, fix=_FIX, takes=_ARGUMENTS)
            if not inspect.iscoroutinefunction(self._agent):
                raise ConfigError(what, why="it is a plain function", fix=_FIX)

    async def play(self, row: Row, base_url: str, api_key: str) -> RewardResult:
        """Do the task of a row, and have its tests say what that is worth.

        Raises:
            DatasetError: the row is of another data set; its task needs an image that nobody named.
            SandboxError: there is no such image, or no sandbox.
            EpisodeFailed: the tests say nothing.
        """
        if COLUMN not in row:
            raise DatasetError(f"a row has no column {COLUMN!r}", why="it is the task", fix="data.name: harbor")
        task = await asyncio.to_thread(read_task, Path(row[COLUMN]))
        image = self._image(task)
        async with self._places:
            sandbox = await self._provider.open(self._limits(task), image=image)
            try:
                return await self._done(task, sandbox, image, row, base_url, api_key)
            finally:
                await sandbox.close()

    async def close(self) -> None:
        """Close every sandbox. Idempotent."""
        await self._provider.close()

    async def _done(
        self, task: TaskFolder, sandbox: Sandbox, image: str, row: Row, base_url: str, api_key: str
    ) -> RewardResult:
        inside = await TaskSandbox.prepared(task, sandbox, image=bool(image))
        config, num_ran, in_time = self.config, 0, True

        async def run(command: str) -> Any:  # Any: Ran, for the user's own agent too
            nonlocal num_ran
            num_ran += 1
            return await inside.run(command, config.command_timeout_s)

        try:
            async with asyncio.timeout(task.agent_timeout_s) as limit:
                if self._agent is not None:
                    await self._agent(row, base_url, api_key, run)
                else:
                    tools = [TOOL] if config.commands == "tool" else []
                    async with conversation(base_url, api_key, tools) as policy:
                        policy.say("user", task.instruction)
                        await work(policy, run, max_turns=config.max_turns, max_chars=config.max_chars)
        except TimeoutError:
            if not limit.expired():
                raise
            in_time = False  # what is done by then is tested, as Harbor does
        result = await inside.tested()
        told = {"commands": float(num_ran), "in_time": float(in_time), **result.components}
        return RewardResult(value=result.value, components=told)

    def _image(self, task: TaskFolder) -> str:
        """Return the image of a task, "" for one that needs none."""
        image = task.image or (self.config.image.replace("{name}", task.name.lower()) if task.build else "")
        if task.build and not image:
            raise SandboxError(
                f"the task {task.name} has a Dockerfile, and no image is named",
                why="images are built before a run",
                fix=f"docker build -t tasks/{task.name.lower()} {task.build}, and options image: tasks/{{name}}",
            )
        return image

    def _limits(self, task: TaskFolder) -> Limits:
        return Limits(
            timeout_s=max(self.config.command_timeout_s, task.test_timeout_s),
            memory_mb=min(task.memory_mb, self.config.max_memory_mb),
            processes=256,
            disk_mb=min(task.disk_mb, self.config.max_memory_mb),
            network=self.config.network and task.network,
        )
