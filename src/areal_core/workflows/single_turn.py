"""One prompt, one completion, one reward: the workflow of reinforcement learning from verifiable rewards.

Knows: how a row becomes a prompt, and that a bad reward is an error.
Does not know: groups (the executor runs a row several times), or what the reward measures.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, frozen

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.workflow import RewardInput, Session, Tokenizer
from areal_core.data.trajectory import from_generation
from areal_core.rollout.rewards import require_ok

COLUMNS = ("input_ids", "messages", "prompt")
"""A row needs one of these; the first that is there counts."""
REMEMBERED_PROMPTS = 256
"""Prompts whose token ids are kept."""


@frozen(kw_only=True)
class SingleTurnConfig:
    """Options under `rollout.workflow.options`."""

    system: str = ""
    """A system message put before the conversation. A row's own system message comes after it."""
    chat: bool = False
    """Put a `prompt` through the chat template, as one message of the user; `system` implies it."""
    template: Mapping[str, Any] = Factory(dict)  # Any: the template's own variables
    """Given to the chat template, for example {"enable_thinking": false}."""
    add_special_tokens: bool = True
    """Whether a plain `prompt` gets the special tokens the tokenizer puts around a text."""


class SingleTurnWorkflow:
    """Generate once, score once."""

    def __init__(self, config: SingleTurnConfig | None = None) -> None:
        """Hold no state but the options and the last prompts: one instance serves every episode."""
        self._config = config or SingleTurnConfig()
        self._encoded: OrderedDict[str, list[int]] = OrderedDict()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `prompt`, `messages` or `input_ids`. Any: as in the contract.

        Raises:
            DatasetError: the row has none of the columns, or one of the wrong type.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        prompt_ids = self.prompt_ids(engine.tokenizer, data, engine.task_id)
        generation = await engine.generate(prompt_ids)
        prompt = data.get("prompt")
        result = await engine.reward(
            RewardInput(
                prompt=prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt_ids),
                completion=engine.tokenizer.decode(generation.output_ids, skip_special_tokens=True),
                completion_ids=generation.output_ids,
                stop_reason=str(generation.stop_reason),
                row=data,
            )
        )
        trajectory = from_generation(prompt_ids, generation, require_ok(result, f"episode {engine.task_id}"))
        return Episode(
            trajectories=(trajectory,), task_id=engine.task_id, group_id=engine.group_id, metrics=result.components
        )

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str) -> list[int]:
        """Return the prompt's token ids. Any: as in the contract.

        Raises:
            DatasetError: names the row's task, the columns wanted and the columns there.
        """
        config = self._config
        column = next((name for name in COLUMNS if name in data), None)
        if column is None:
            raise DatasetError(
                f"the row of {task_id} has no column {', '.join(repr(name) for name in COLUMNS)}",
                why=f"single_turn needs one of them; the row has: {', '.join(map(repr, data)) or 'nothing'}",
                fix="let the data set give a 'prompt', or name another workflow",
            )
        value = data[column]
        if column == "input_ids":
            return _checked_ids(value, task_id)
        if column == "messages":
            return self._from_chat(tokenizer, _checked_messages(value, task_id))
        if not isinstance(value, str):
            raise _wrong(column, value, "a string", task_id)
        if config.chat or config.system:
            return self._from_chat(tokenizer, [{"role": "user", "content": value}])
        return self._encode(tokenizer, value)

    def _encode(self, tokenizer: Tokenizer, prompt: str) -> list[int]:
        """Tokenise a prompt once for all members of its group, which ask one after the other."""
        if prompt not in self._encoded:
            self._encoded[prompt] = tokenizer.encode(prompt, add_special_tokens=self._config.add_special_tokens)
            if len(self._encoded) > REMEMBERED_PROMPTS:
                self._encoded.popitem(last=False)
        return list(self._encoded[prompt])

    def _from_chat(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
        config = self._config
        system = [{"role": "system", "content": config.system}] if config.system else []
        options = {"add_generation_prompt": True, **config.template, "tokenize": True, "return_dict": False}
        return [int(token) for token in tokenizer.apply_chat_template([*system, *messages], **options)]


def _checked_ids(value: object, task_id: str) -> list[int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, int) for i in value):
        raise _wrong("input_ids", value, "a list of token ids", task_id)
    return list(value)


def _checked_messages(value: object, task_id: str) -> list[Mapping[str, str]]:
    if not isinstance(value, Sequence) or not all(isinstance(message, Mapping) for message in value):
        raise _wrong("messages", value, "a list of {role, content}", task_id)
    return list(value)


def _wrong(column: str, value: object, wanted: str, task_id: str) -> DatasetError:
    return DatasetError(
        f"column {column!r} in the row of {task_id} is of type {type(value).__name__}",
        why=f"it must be {wanted}; it begins with {str(value)[:60]!r}",
        fix="check the data set",
    )
