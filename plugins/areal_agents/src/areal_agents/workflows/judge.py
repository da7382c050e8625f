"""The policy's answers graded by a model of the run's own fleet: the workflow `judge`. A template to copy.

The judge is an adapter beside the policy (`rollout.adapters`), or the policy itself; it is never trained here. A model
behind another URL is the reward `judge`.

Knows: what the judge is asked, and how its words become a number.
Does not know: tokens, or what makes an answer good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen, validators

from areal_agentic.conversation import ended
from areal_agents.workflows.talks import TalkConfig, Talks, user
from areal_core.contract.data import Episode
from areal_core.contract.errors import EpisodeFailed
from areal_core.contract.workflow import Session, Tokenizer

QUESTION = """{prompt}

{answer}

How good is this answer? Think briefly, then end with a line of the form "Score: N", N from 0 to 10."""


@frozen(kw_only=True)
class JudgeConfig(TalkConfig):
    """Options under `rollout.workflow.options`.

    Example: {adapter: critic} beside `rollout.adapters: {critic: DIR}`
    """

    adapter: str = ""
    """Which of `rollout.adapters` judges. Empty: the policy itself, which is not trained on what it says as a judge."""
    question: str = QUESTION
    """What the judge is asked; {prompt} and {answer}, what the policy said, are filled in, and columns of the row."""
    pattern: str = r"(?i)score\W*?([-+]?\d+(?:\.\d+)?)"
    """A regular expression; the first group of its last match in what the judge says is the score."""
    scale: float = field(default=10.0, validator=validators.gt(0.0))
    """The score is divided by this."""
    tries: int = field(default=3, validator=validators.ge(1))
    """How often a judge that gives no score is asked; then the episode fails."""


class JudgeWorkflow:
    """Answer, and have the answer graded by a model of the fleet."""

    def __init__(self, config: JudgeConfig | None = None) -> None:
        """Build the renderer. One instance serves every episode."""
        self._config = config or JudgeConfig()
        self._talks = Talks(self._config)

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `messages` or `prompt`. Any: as in the contract.

        Raises:
            DatasetError: the row has neither, or the renderer cannot write it.
            EpisodeFailed: the judge gave no score.
        """
        talk = self._talks.begin(engine, data)
        answer = await talk.ask()
        prompt = data.get("prompt") if isinstance(data.get("prompt"), str) else talk.messages[-2]["content"]
        parts = {**data, "prompt": prompt, "answer": answer.content if answer else ""}
        reward = await self._score(engine, user(self._config.question, parts)["content"])
        return Episode(
            trajectories=talk.trajectories(reward),
            task_id=engine.task_id,
            group_id=engine.group_id,
        )

    async def _score(self, engine: Session, question: str) -> float:
        config, renderer = self._config, self._talks.renderer(engine.tokenizer)
        prompt_ids = renderer.render([{"role": "user", "content": question}])
        sampling = ended(engine.sampling, renderer)
        for _ in range(config.tries):
            said = await engine.generate(prompt_ids, sampling, adapter=config.adapter)
            verdict = renderer.parse(said.output_ids).content
            if found := [match[1] for match in re.finditer(config.pattern, verdict)]:
                return float(found[-1]) / config.scale
        raise EpisodeFailed(
            f"the judge gave no score in episode {engine.task_id}",
            why=f"asked {config.tries} times, it said at last: {verdict[-200:]!r}",
            fix="ask it otherwise (options.question), or read it otherwise (options.pattern)",
        )

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer."""
        return self._talks.named(tokenizer)

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str) -> Sequence[int]:
        """Return the tokens of a row's first request. Any: as in the contract."""
        return self._talks.prompt_ids(tokenizer, data, task_id)
