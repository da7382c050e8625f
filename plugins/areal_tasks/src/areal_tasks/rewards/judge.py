"""A language model as the judge: it is asked over an OpenAI-compatible URL, and its answer holds the score.

Knows: how the question is put together, asked, and the score found in the answer.
Does not know: who serves the model, or how long an answer may take (the reward pool does).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from attrs import field, frozen, validators

from areal_core.contract.errors import ConfigError
from areal_core.plugins.redact import redact
from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import required
from areal_tasks.served import Served

QUESTION = """\
Judge how good the answer to the request is, from 0 (useless or wrong) to 10 (right and complete).

[Request]
{prompt}

[Answer]
{completion}

Think briefly, then end with a line of the form "Score: N"."""
_NAMED = re.compile(r"\{(\w+)\}")
_GIVEN = ("prompt", "completion")


def _pattern(_config: object, _attribute: object, value: str) -> None:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ConfigError(f"pattern={value!r} is no regular expression", why=str(error)) from None
    if not groups:
        raise ConfigError(
            f"pattern={value!r} has no group", why="the first group is the score", fix=r"for example 'Score: *([\d.]+)'"
        )


@frozen(kw_only=True)
class JudgeConfig:
    """Options of `judge`.

    Example: JudgeConfig(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-8B", scale=10.0)
    """

    url: str = field(validator=validators.matches_re(r"https?://.+"))
    """Of the API, up to and with its version: /chat/completions is added."""
    model: str = field(validator=validators.min_len(1))
    """The judge, as the server calls it."""
    question: str = QUESTION
    """What is asked; {prompt}, {completion} and columns of the row, such as {answer}, are filled in."""
    pattern: str = field(default=r"(?i)score\W*([-+]?\d+(?:\.\d+)?)", validator=_pattern)
    """A regular expression; the first group of its last match in the answer is the score."""
    scale: float = field(default=10.0, validator=validators.gt(0.0))
    """The score is divided by this."""
    max_tokens: int = field(default=512, validator=validators.ge(1))
    """Of the judge's answer."""
    temperature: float = field(default=0.0, validator=validators.ge(0.0))
    """Of the judge's answer; 0 is greedy."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with the key; without one none is sent. Keys stand in no configuration."""
    retries: int = field(default=3, validator=validators.ge(0))
    """How often a server that is busy or not there is asked again, after about 1, 2, 4, ... seconds, or as it says."""


@frozen
class Judge:
    """Asks a model what an answer is worth."""

    config: JudgeConfig
    _served: Served = field(init=False, eq=False, repr=False)

    @_served.default
    def _serve(self) -> Served:
        config = self.config
        return Served(who="judge", url=config.url, api_key_env=config.api_key_env, retries=config.retries)

    def columns(self) -> Sequence[str]:
        """Return the columns that the question names."""
        return [name for name in _NAMED.findall(self.config.question) if name not in _GIVEN]

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> dict[str, float]:
        """Return the score as `value`, and its length in characters as a component. Called in a reward process.

        Raises:
            ConfigError: the question names a column the row does not have.
            ValueError: the answer holds no score, or is none of a chat.
            OSError: the server refuses, or cannot be reached.
        """
        known = dict(zip(_GIVEN, (prompt, completion), strict=True))

        def filled(match: re.Match[str]) -> str:
            name = match[1]
            return known[name] if name in known else str(required(row, name))

        answer = self._asked(_NAMED.sub(filled, self.config.question))
        found = re.findall(self.config.pattern, answer)
        if not found:
            raise ValueError(f"the judge's answer holds no score ({self.config.pattern}): {answer[-300:]!r}")
        last = found[-1] if isinstance(found[-1], str) else found[-1][0]
        score = float(last) / self.config.scale
        if not math.isfinite(score):
            raise ValueError(f"the judge's score is {last}")
        return {"value": score, "judge_characters": float(len(answer))}

    def _asked(self, question: str) -> str:
        body = {
            "model": self.config.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self.config.max_tokens,
            "temperature": self.config.temperature,
        }
        answer = self._served.post("/chat/completions", body)
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (LookupError, TypeError):
            raise ValueError(f"the judge at {redact(self.config.url)} answered no chat: {str(answer)[:200]}") from None
