"""Environments of verifiers' first interface: `SingleTurnEnv`, `MultiTurnEnv`, `ToolEnv` and the like, up to 0.3.

Knows: their rows, rollouts and rubrics.
Does not know: how an environment is found.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import RewardResult
from areal_environments.played import Row


@frozen
class Environment:
    """One `verifiers.Environment`."""

    made: Any  # the library is not typed here

    def count(self, split: str, size: int) -> int:
        """Return how many rows there are, `size` at most; 0 is all of them."""
        return min(size or len(self._rows(split)), len(self._rows(split)))

    def row(self, split: str, index: int) -> Row:
        """Return a row: `prompt`, `example_id`, maybe `answer` and `info`."""
        return dict(self._rows(split)[index])

    def _rows(self, split: str) -> Any:  # Any: as above
        return self.made.get_dataset() if split == "train" else self.made.get_eval_dataset()

    async def play(self, row: Row, base_url: str, api_key: str) -> RewardResult:
        """Return what one rollout was worth to the rubric, with its metrics."""
        clients = importlib.import_module("verifiers.clients.openai_chat_completions_client")
        openai = importlib.import_module("openai")
        http = openai.DefaultAsyncHttpxClient(verify=False, trust_env=False)  # loopback: no certificates, no proxies
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key, max_retries=0, timeout=None, http_client=http
        ) as client:
            output = await self.made.run_rollout(row, clients.OpenAIChatCompletionsClient(client), "policy", {})
        if error := output.get("error"):
            raise EpisodeFailed("the rollout of the environment failed", why=str(error)[:600])
        components = {str(name): float(value) for name, value in (output.get("metrics") or {}).items()}
        return RewardResult(value=float(output["reward"]), components=components)


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
