"""Answer, be criticised, answer again: the critic is an adapter beside the policy, or the policy itself.

Knows: what the critic is asked, and how its words become the next turn of the conversation.
Does not know: how a row becomes a prompt (`single_turn`), or what an adapter is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.trajectory import TrajectoryBuilder, from_generation
from areal_core.contract.workflow import RewardInput, Session, Tokenizer, require_ok
from areal_tasks.datasets.encoding import Renderer
from areal_tasks.workflows.single_turn import IMAGES, SingleTurnConfig, SingleTurnWorkflow

_ANSWER = "areal-answered-this"
"""Stands for an answer where the template is asked what comes after one."""


@frozen(kw_only=True)
class CritiqueConfig(SingleTurnConfig):
    """Options under `rollout.workflow.options`, with those of `single_turn`.

    Example: {adapter: critic} beside `rollout.adapters: {critic: DIR}`
    """

    adapter: str = ""
    """Which of `rollout.adapters` criticises. Empty: the policy itself, which is trained on its criticism too."""
    question: str = "{prompt}\n\n{answer}\n\nWhat is wrong with this answer?\n"
    """What the critic is asked; `{prompt}` and `{answer}` stand for the row's prompt and the first answer."""
    again: str = "{critique}\n\nAnswer again.\n"
    """What the policy is asked then; `{critique}` stands for what the critic said."""


class CritiqueWorkflow(SingleTurnWorkflow):
    """Generate, have it criticised, generate again; the reward is of the second answer, and both are trained on."""

    def __init__(self, config: CritiqueConfig | None = None) -> None:
        """Hold no state but the options and the last prompts: one instance serves every episode."""
        self._critique = config or CritiqueConfig()
        super().__init__(self._critique)

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `prompt`, `messages` or `input_ids`. Any: as in the contract.

        Raises:
            DatasetError: the row has none of the columns, one of the wrong type, or images.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        if data.get(IMAGES) is not None:
            raise DatasetError(f"the row of {engine.task_id} has images", why="the critic would not see them")
        config, tokenizer = self._critique, engine.tokenizer
        prompt_ids = self.prompt_ids(tokenizer, data, engine.task_id)
        prompt = data["prompt"] if isinstance(data.get("prompt"), str) else tokenizer.decode(prompt_ids)
        talk = _Talk(tokenizer, config, data, f"the row of {engine.task_id}")
        turns = TrajectoryBuilder(prompt_ids)
        first = await engine.generate(prompt_ids)
        turns.add_generation(first)
        answer = tokenizer.decode(first.output_ids, skip_special_tokens=True)

        asked = data["prompt"] if isinstance(data.get("prompt"), str) else _plain(tokenizer, prompt_ids)
        critic_ids = talk.begun(_filled(config.question, prompt=asked, answer=answer))
        said = await engine.generate(critic_ids, adapter=config.adapter)
        critique = tokenizer.decode(said.output_ids, skip_special_tokens=True)

        turns.add_environment(talk.continued(first.output_ids, _filled(config.again, critique=critique)))
        second = await engine.generate(turns.input_ids)
        turns.add_generation(second)
        result = await engine.reward(
            RewardInput(
                prompt=prompt,
                completion=tokenizer.decode(second.output_ids, skip_special_tokens=True),
                completion_ids=second.output_ids,
                stop_reason=str(second.stop_reason),
                row=data,
            )
        )
        reward = require_ok(result, f"episode {engine.task_id}")
        made = [turns.build(reward)]
        if not config.adapter:
            made.append(from_generation(critic_ids, said, reward))
        return Episode(
            trajectories=made, task_id=engine.task_id, group_id=engine.group_id, metrics=dict(result.components)
        )


class _Talk:
    """How a user's turn becomes tokens: by the chat template where the row's prompt went through it, else as it is."""

    def __init__(self, tokenizer: Tokenizer, config: CritiqueConfig, data: Mapping[str, Any], where: str) -> None:
        self._tokenizer, self._config = tokenizer, config
        plain = "input_ids" in data or (isinstance(data.get("prompt"), str) and "messages" not in data)
        chat = "input_ids" not in data and (not plain or config.chat or bool(config.system))
        self._render = Renderer(tokenizer, config, data, where) if chat else None

    def begun(self, text: str) -> list[int]:
        """Return a conversation that this turn begins."""
        if self._render is None:
            return self._tokenizer.encode(text, add_special_tokens=self._config.add_special_tokens)
        return self._ids(self._render([{"role": "user", "content": text}], ask=True))

    def continued(self, answer_ids: Sequence[int], text: str) -> list[int]:
        """Return what follows an answer, whose own end token is not said twice."""
        if self._render is None:
            return self._ids(f"\n{text}")
        messages = [("user", "."), ("assistant", _ANSWER), ("user", text)]
        whole = self._render([{"role": role, "content": content} for role, content in messages], ask=True)
        ids = self._ids(whole.partition(_ANSWER)[2])
        return ids[1:] if ids[:1] == list(answer_ids[-1:]) else ids

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _plain(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of a prompt without special tokens: within a question none of them means what it does there."""
    return tokenizer.decode(ids, skip_special_tokens=True)


def _filled(template: str, **parts: str) -> str:
    """Return a template with its parts put in; what they say is not looked at."""
    return re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), template)
