"""The policy calls tools, turn by turn, until it answers: the workflow `tools`.

Knows: which tools an episode has, and when it ends.
Does not know: what a tool does, how calls are written in tokens (renderers), or where code runs (sandboxes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_agentic.renderer import Answer, Tool
from areal_agentic.sandbox import Limits, SandboxProvider
from areal_agentic.tools import FunctionTool, Toolbox
from areal_agentic.user_function import user_function
from areal_agents.workflows.builtin import Programs, calculator
from areal_agents.workflows.talks import TalkConfig, Talks
from areal_core.contract.data import Episode
from areal_core.contract.errors import ConfigError
from areal_core.contract.workflow import Session, Tokenizer, require_ok
from areal_core.plugins.registry import current_registry

_PYTHON = "python"


@frozen(kw_only=True)
class ToolsConfig(TalkConfig):
    """Options under `rollout.workflow.options`.

    Example: {tools: [calculator, my_tools.py:search], max_turns: 6}
    """

    tools: tuple[str, ...] = field(default=("calculator",), converter=tuple[str, ...], validator=validators.min_len(1))
    """What the policy may call: `calculator`, `python` (a program in a sandbox), and functions of your own as
    FILE.py:FUNCTION or MODULE:FUNCTION, described to it by their type hints and docstrings."""
    max_turns: int = field(default=8, validator=validators.ge(1))
    """Answers of an episode at most; calls of the last one are not made."""
    calls: str = field(default="renderer", validator=validators.in_(("renderer", "engine")))
    """Who reads calls of an answer: the renderer, or the engine's own parser (engines that claim `tools.parse`)."""
    timeout_s: float = field(default=10.0, validator=validators.gt(0.0))
    """One call; the policy is told that it took longer."""
    max_chars: int = field(default=4096, validator=validators.ge(1))
    """Of what a call is answered with; the rest is cut."""
    sandbox: str = "local"
    """Where `python` runs: a provider, as `areal backends --role sandbox` lists them."""
    sandbox_options: Mapping[str, Any] = field(
        default=Factory(dict), metadata={"role": "sandbox", "named_by": "sandbox"}
    )  # Any: the provider's own
    """Options of that provider."""
    image: str = ""
    """The container image of `python`, for providers that have images."""
    memory_mb: int = field(default=512, validator=validators.ge(16))
    """Of a sandbox, in MiB."""


class ToolsWorkflow:
    """Ask, make the calls of the answer, ask again; the reward is that of the last answer, all are trained on."""

    def __init__(self, config: ToolsConfig | None = None) -> None:
        """Import the functions and build the renderer. One instance serves every episode."""
        self._config = config = config or ToolsConfig()
        self._talks = Talks(config)
        self._functions = [_function(name, config.timeout_s) for name in config.tools if name != _PYTHON]
        self._sandboxes: SandboxProvider | None = None
        names = [tool.name for tool in self._functions]
        if _PYTHON in config.tools:
            path = "rollout.workflow.options.sandbox_options"
            made = current_registry().build("sandbox", config.sandbox, config.sandbox_options, path)
            assert isinstance(made, SandboxProvider), f"{config.sandbox} makes no sandboxes"
            self._sandboxes = made
            names.append(_PYTHON)
        if len(set(names)) < len(config.tools):
            raise ConfigError("two tools have one name", why=f"rollout.workflow.options.tools: {', '.join(names)}")

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `messages` or `prompt`. Any: as in the contract.

        Raises:
            DatasetError: the row has neither, or the renderer cannot write it, or has no place for tools.
            SandboxError: a sandbox cannot be had, or failed.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        async with self._opened() as box:
            talk = self._talks.begin(engine, data, box.schemas)
            read = partial(_parsed, engine, box.schemas) if self._config.calls == "engine" else None
            while (answer := await talk.ask(read)) and answer.calls and talk.num_answers < self._config.max_turns:
                talk.say(*await box.answer(answer.calls))
        result = await talk.score(data)
        made = {"turns": talk.num_answers, "tools/calls": box.num_calls, "tools/errors": box.num_errors}
        return Episode(
            trajectories=talk.trajectories(require_ok(result, f"episode {engine.task_id}")),
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={**{name: float(count) for name, count in made.items()}, **talk.metrics, **result.components},
        )

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer."""
        return self._talks.named(tokenizer)

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str) -> Sequence[int]:
        """Return the tokens of a row's first request. Any: as in the contract."""
        box, _ = self._toolbox()
        return self._talks.prompt_ids(tokenizer, data, task_id, box.schemas)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Toolbox]:
        """Yield the tools of one episode."""
        box, programs = self._toolbox()
        try:
            yield box
        finally:
            if programs is not None:
                await programs.close()

    def _toolbox(self) -> tuple[Toolbox, Programs | None]:
        config = self._config
        if self._sandboxes is None:
            return Toolbox(self._functions, max_chars=config.max_chars), None
        limits = Limits(timeout_s=config.timeout_s, memory_mb=config.memory_mb)
        programs = Programs(self._sandboxes, limits, config.image)
        tools = [*self._functions, FunctionTool.of(programs.python, timeout_s=None)]
        return Toolbox(tools, max_chars=config.max_chars), programs


def _function(name: str, timeout_s: float) -> FunctionTool:
    if name == calculator.__name__:
        return FunctionTool.of(calculator, timeout_s=timeout_s)
    if ":" not in name:
        raise ConfigError(
            f"rollout.workflow.options.tools names {name!r}",
            why="there are calculator and python, and functions of your own",
            fix="write a function of a file as FILE.py:FUNCTION",
        )
    function = user_function(
        name,
        what=f"rollout.workflow.options.tools names {name}, which cannot be called",
        fix="name a function of a file, relative to the folder areal is started in: my_tools.py:search",
    )
    return FunctionTool.of(function, timeout_s=timeout_s)


async def _parsed(engine: Session, tools: Sequence[Tool], output_ids: Sequence[int]) -> Answer:
    """Have the engine read an output."""
    text = engine.tokenizer.decode(list(output_ids), skip_special_tokens=False)
    found = await engine.parse_tool_calls(text, tools)
    return Answer(content=found.content, calls=found.calls)
