"""A teacher behind an OpenAI-compatible URL: log-probs of tokens that somebody else's server has been shown.

Tokens travel as ids and are never encoded again: the server has to have the student's vocabulary.

Knows: the form of `/completions` with `echo` and `logprobs`, as vLLM and SGLang answer it.
Does not know: what the log-probs are for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from attrs import field, frozen, validators
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.train import Output
from areal_tasks.served import Served

_ID = "token_id:"
_MORE = "vLLM, started with --max-logprobs of options.top_k or more"
T = TypeVar("T")


@frozen(kw_only=True)
class ServedTeacherConfig:
    """Where a teacher is served.

    Example: ServedTeacherConfig(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-8B")
    """

    url: str = field(validator=validators.matches_re(r"https?://.+"))
    """Of the API, up to and with its version: /completions is added. A model with the student's vocabulary."""
    model: str = field(validator=validators.min_len(1))
    """The teacher, as the server calls it."""
    concurrency: int = field(default=16, validator=validators.ge(1))
    """Answers that are judged at once."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with the key; without one none is sent. Keys stand in no configuration."""
    retries: int = field(default=3, validator=validators.ge(0))
    """How often a server that is busy or not there is asked again, after about 1, 2, 4, ... seconds, or as it says."""


class ServedTeacher:
    """Judges the tokens of a batch, sequence by sequence; stands where a frozen training role would."""

    def __init__(self, config: ServedTeacherConfig) -> None:
        self._config = config
        self._served = Served(who="teacher", url=config.url, api_key_env=config.api_key_env, retries=config.retries)

    async def forward(self, batch: Batch, output: Output) -> Tensor:
        """Return log p(token t | tokens before it) for the whole batch, float32 [T], at temperature 1; 0 for the first.

        Raises:
            GenerationFailed: the server refuses, cannot be reached, or does not tell a log-prob of every token.
        """
        assert output is Output.LOGPROBS, "a server tells nothing else"
        rows = await self._rows(batch, self.logprobs)
        return torch.tensor([value for row in rows for value in row], dtype=torch.float32)

    async def most_probable(self, batch: Batch, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` most probable tokens at each place, int32 [T, count], and their log-probs.

        At the first token of a sequence both are 0.

        Raises:
            GenerationFailed: as `forward`, or the server names fewer tokens, or names them by their text.
        """
        rows = await self._rows(batch, lambda ids: self.named(ids, count))
        ids, logprobs = ([entry[number] for row in rows for entry in row] for number in (0, 1))
        return torch.tensor(ids, dtype=torch.int32), torch.tensor(logprobs, dtype=torch.float32)

    async def _rows(self, batch: Batch, ask: Callable[[list[int]], list[T]]) -> list[list[T]]:
        """Return what a blocking question tells of each sequence, several asked at once."""
        places = asyncio.Semaphore(self._config.concurrency)
        ids, starts = batch.tokens["input_ids"].tolist(), batch.cu_seqlens.tolist()

        async def judged(row: int) -> list[T]:
            async with places:
                return await asyncio.to_thread(ask, ids[starts[row] : starts[row + 1]])

        return await asyncio.gather(*(judged(row) for row in range(batch.num_sequences)))

    def named(self, ids: Sequence[int], count: int) -> list[tuple[list[int], list[float]]]:
        """Return the most probable tokens at each place of one sequence, and their log-probs. Blocks."""
        told = self._told(ids, count)
        found = [([0] * count, [0.0] * count)]
        for place in (told.get("top_logprobs") or [])[1 : len(ids)]:
            best = sorted(((value, key) for key, value in (place or {}).items()), reverse=True)[:count]
            if len(best) < count or not all(key.startswith(_ID) and math.isfinite(value) for value, key in best):
                break
            found.append(([int(key.removeprefix(_ID)) for _, key in best], [float(value) for value, _ in best]))
        if len(found) != len(ids):
            why = f"at place {len(found)} it does not name {count} tokens by their ids with finite log-probs"
            raise _unreadable(self._config.url, why, f"a server that knows return_tokens_as_token_ids ({_MORE})")
        return found

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each token of one sequence, 0.0 for the first. Blocks."""
        values = self._told(ids, 1)["token_logprobs"][: len(ids)]
        if len(values) != len(ids) or not all(isinstance(v, int | float) and math.isfinite(v) for v in values[1:]):
            raise _unreadable(
                self._config.url, f"{len(values)} log-probs came for {len(ids)} tokens, or some are not finite"
            )
        return [0.0, *(float(value) for value in values[1:])]

    def _told(self, ids: Sequence[int], count: int) -> dict[str, Any]:  # Any: json
        """Return `logprobs` of the answer about one sequence."""
        body = {
            "model": self._config.model,
            "prompt": list(ids),
            "max_tokens": 1,  # none is more than some servers take
            "temperature": 1.0,
            "echo": True,
            "logprobs": count,
            "return_tokens_as_token_ids": True,
        }
        url = self._config.url
        try:
            answer = self._served.post("/completions", body)
            told: dict[str, Any] = answer["choices"][0]["logprobs"]
            told["token_logprobs"], tokens = list(told["token_logprobs"]), list(told.get("tokens") or [])
        except OSError as error:
            raise GenerationFailed("the teacher does not answer", why=str(error)) from None
        except (LookupError, TypeError, ValueError) as error:
            raise _unreadable(url, f"{type(error).__name__}: {error}") from None
        read = [token.removeprefix(_ID) for token in tokens[: len(ids)] if str(token).startswith(_ID)]
        if read and read != [str(token) for token in ids]:
            raise _unreadable(url, "it judged other tokens than it was sent")
        return told


def _unreadable(
    url: str, why: str, where: str = "/completions that takes token ids with echo and logprobs, as vLLM and SGLang do"
) -> GenerationFailed:
    return GenerationFailed(
        f"the teacher at {url} does not tell the log-prob of every token", why=why, fix=f"serve it with {where}"
    )
