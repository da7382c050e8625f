"""A language model as the judge: it is asked over an OpenAI-compatible URL, and its answer holds the score.

Knows: how a judge is asked over HTTP.
Does not know: the question or the score (`verdict`), who serves the model, or how long an answer may take (the reward
pool does).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen, validators

from areal_core.plugins.redact import redact
from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.verdict import VerdictConfig
from areal_tasks.served import Served


@frozen(kw_only=True)
class JudgeConfig(VerdictConfig):
    """Options of `judge`.

    Example: JudgeConfig(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-8B", scale=10.0)
    """

    url: str = field(validator=validators.matches_re(r"https?://.+"))
    """Of the API, up to and with its version: /chat/completions is added."""
    model: str = field(validator=validators.min_len(1))
    """The judge, as the server calls it."""
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
        return self.config.columns()

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> dict[str, float]:
        """Return the score as `value`, and its length in characters as a component. Called in a reward process.

        Raises:
            DatasetError: the question names a column the row does not have.
            ValueError: the answer holds no score, or is none of a chat.
            OSError: the server refuses, or cannot be reached.
        """
        answer = self._asked(self.config.asked(prompt, completion, row))
        return {"value": self.config.score(answer), "judge_characters": float(len(answer))}

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
