"""Environments of verifiers' first interface: `SingleTurnEnv`, `MultiTurnEnv`, `ToolEnv` and the like, up to 0.3.

The library goes on where something fails, and takes a reward function that raised for a reward of 0. Here such an
episode has failed, as with its second interface.

Knows: their rows, rollouts and rubrics.
Does not know: how an environment is found.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from attrs import define, field

from areal_core.contract.errors import ConfigError, DatasetError, EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.blame import told
from areal_environments.played import Row

_raised: ContextVar[list[tuple[str, Exception]]] = ContextVar("raised")
"""The reward functions that raised in the episode of this task, and what."""


@define(eq=False)
class Environment:
    """One `verifiers.Environment`."""

    made: Any = field()  # the library is not typed here

    def __attrs_post_init__(self) -> None:
        """Have its reward functions tell when they raise.

        Raises:
            ConfigError: some of them judge several rollouts of a row at once.
        """
        if self.made.rubric.has_group_rewards:
            raise ConfigError(
                "the environment has reward functions of groups",
                why="an episode is scored when it ends, alone",
                fix="use `verifiers.Rubric` functions of one completion; the estimator compares rollouts of a row",
            )
        _watch(self.made.rubric)

    def count(self, split: str, size: int) -> int:
        """Return how many rows there are, `size` at most; 0 is all of them."""
        return min(size or len(self._rows(split)), len(self._rows(split)))

    def row(self, split: str, index: int) -> Row:
        """Return a row: `prompt`, `example_id`, maybe `answer` and `info`."""
        return dict(self._rows(split)[index])

    def _rows(self, split: str) -> Any:  # Any: as above
        rows = self.made.build_dataset() if split == "train" else self.made.build_eval_dataset()
        if rows is None:
            raise DatasetError(
                f"the environment has no rows of the split {split}",
                why="it was made with the other data set alone",
                fix="have it make both; or take the other split, with arguments that make other rows",
            )
        return rows

    async def play(self, row: Row, base_url: str, api_key: str, *, raised_is_zero: bool = False) -> RewardResult:
        """Return what one rollout was worth to the rubric, with its metrics."""
        raised: list[tuple[str, Exception]] = []
        _raised.set(raised)
        openai = importlib.import_module("openai")
        http = openai.DefaultAsyncHttpxClient(verify=False, trust_env=False)  # loopback: no certificates, no proxies
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key, max_retries=0, timeout=None, http_client=http
        ) as client:
            output = await self.made.run_rollout(row, _client()(client), "policy", {})
        if error := output.get("error"):
            raise EpisodeFailed("the rollout of the environment failed", why=str(error)[:600])
        if raised and not raised_is_zero:
            name, why = raised[0]
            raise EpisodeFailed(
                f"the environment's reward function {name} raised",
                why=told(why),
                fix="have it return what such an answer is worth; or rollout.workflow.options.raised_is_zero: true",
            )
        components = {str(name): float(value) for name, value in (output.get("metrics") or {}).items()}
        return RewardResult(value=float(output["reward"]), components=components)


@functools.cache
def _client() -> Any:  # Any: a class of the library
    """Return the library's client, for which an answer without text is one: the rubric says what it is worth."""
    clients = importlib.import_module("verifiers.clients.openai_chat_completions_client")
    known: Any = clients.OpenAIChatCompletionsClient

    class Client(known):  # type: ignore[misc]  # a base class that is imported late
        async def raise_from_native_response(self, response: object) -> None:
            pass

        async def from_native_response(self, response: Any) -> Any:
            made = await super().from_native_response(response)
            if made.message.content is None and not made.message.tool_calls:
                made.message.content = ""
            return made

    return Client


def _watch(rubric: Any) -> None:  # Any: a rubric, a group of them, or one that asks those of several environments
    for each in (*getattr(rubric, "rubrics", ()), *(one.rubric for one in getattr(rubric, "env_map", {}).values())):
        _watch(each)
    rubric.funcs = [_watched(function) for function in rubric.funcs]


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: the environment's own
    """Return the function under its name and with its arguments; what it raises is noted on its way."""

    @functools.wraps(function)
    async def watched(*given: object, **named: object) -> object:
        try:
            result = function(*given, **named)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            _raised.get([]).append((getattr(function, "__name__", "?"), error))
            raise

    return watched


@contextmanager
def signals_kept() -> Iterator[None]:
    """Put back the handlers of signals that an environment takes for itself when it is made."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is not handler:
                signal.signal(each, handler)
