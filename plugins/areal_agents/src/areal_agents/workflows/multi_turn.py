"""Answer, be told that it is not right, answer again: the workflow `multi_turn`.

Knows: when a conversation ends, and how retries discount its reward.
Does not know: tokens (`areal_agentic.conversation`), or what the reward measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen, validators

from areal_agents.workflows.talks import TalkConfig, Talks, user
from areal_core.contract.data import Episode
from areal_core.contract.workflow import Session, Tokenizer, require_ok


@frozen(kw_only=True)
class MultiTurnConfig(TalkConfig):
    """Options under `rollout.workflow.options`.

    Example: {max_turns: 3, turn_discount: 0.9, feedback: "Attempt {attempt} was wrong. Try again."}
    """

    max_turns: int = field(default=4, validator=validators.ge(1))
    """Answers of an episode at most."""
    feedback: str = "This answer is not correct. Look at the question again, find the mistake, and answer once more."
    """Said to an answer that does not pass; {attempt} is its number, from 1, and columns of the row are filled in."""
    pass_reward: float = 1.0
    """An answer passes if its reward is this or more."""
    turn_discount: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """The episode's reward is that of its last answer times this to the power of the retries."""


class MultiTurnWorkflow:
    """Ask until an answer passes, at most so many times; every answer is trained on."""

    def __init__(self, config: MultiTurnConfig | None = None) -> None:
        """Build the renderer. One instance serves every episode."""
        self._config = config or MultiTurnConfig()
        self._talks = Talks(self._config)

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `messages` or `prompt`. Any: as in the contract.

        Raises:
            DatasetError: the row has neither, or the renderer cannot write it.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        config, retries = self._config, 0
        talk = self._talks.begin(engine, data)
        await talk.ask()
        while True:
            result = await talk.score(data)
            reward = require_ok(result, f"episode {engine.task_id}")
            if reward >= config.pass_reward or talk.num_answers == config.max_turns:
                break
            talk.say(user(config.feedback, {**data, "attempt": talk.num_answers}))
            if await talk.ask() is None:
                break
            retries += 1
        return Episode(
            trajectories=talk.trajectories(reward * config.turn_discount**retries),
            task_id=engine.task_id,
            group_id=engine.group_id,
            metrics={"turns": float(talk.num_answers), **talk.metrics, **result.components},
        )

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer."""
        return self._talks.named(tokenizer)

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str) -> Sequence[int]:
        """Return the tokens of a row's first request. Any: as in the contract."""
        return self._talks.prompt_ids(tokenizer, data, task_id)
