"""One prompt, one completion, one reward: the workflow of reinforcement learning from verifiable rewards.

Knows: how a row becomes a prompt with its images, and that a bad reward is an error.
Does not know: groups (the executor runs a row several times), or what the reward measures.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.trajectory import from_generation
from areal_core.contract.workflow import RewardInput, Session, Tokenizer, require_ok
from areal_core.plugins.extensions import ImageReader, ImageSupport, need
from areal_tasks.datasets.encoding import ChatConfig, Renderer
from areal_tasks.datasets.forms import checked_messages

COLUMNS = ("input_ids", "messages", "prompt")
"""A row needs one of these; the first that is there counts."""
IMAGES = "images"
"""A row may have this beside: one image or a list, in the order in which they are shown."""
REMEMBERED_PROMPTS = 256
"""Prompts whose token ids are kept."""
REMEMBERED_IMAGES = 64
"""Rows whose image files are kept."""


@frozen(kw_only=True)
class SingleTurnConfig(ChatConfig):
    """Options under `rollout.workflow.options`."""

    image_marker: str = "<image>"
    """Where it stands in the text of a chat, an image of the row goes; without it images go before the user's text."""
    image_folder: str = ""
    """Where relative paths among a row's `images` begin; empty for the folder the run is started in."""


class SingleTurnWorkflow:
    """Generate once, score once."""

    def __init__(self, config: SingleTurnConfig | None = None) -> None:
        """Hold no state but the options and the last prompts: one instance serves every episode."""
        self._config = config or SingleTurnConfig()
        self.encoded: OrderedDict[str, list[int]] = OrderedDict()
        self._reader: ImageReader | None = None

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        """Make one episode from a row with `prompt`, `messages` or `input_ids`, and maybe `images`.

        Any: as in the contract.

        Raises:
            DatasetError: the row has none of the columns, or one of the wrong type, or another number of images than
                its prompt has places for.
            RewardFailed: the reward function raised, hung, died or returned no finite number.
        """
        images = await self.images_of(data, engine.task_id)
        prompt_ids = self.prompt_ids(engine.tokenizer, data, engine.task_id, len(images))
        _check_places(prompt_ids, engine.image_token_id, len(images), engine.task_id)
        generation = await engine.generate(prompt_ids, images=images)
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
        reward = require_ok(result, f"episode {engine.task_id}")
        trajectory = from_generation(prompt_ids, generation, reward, images=images)
        return Episode(
            trajectories=(trajectory,), task_id=engine.task_id, group_id=engine.group_id, metrics=result.components
        )

    def prompt_ids(self, tokenizer: Tokenizer, data: Mapping[str, Any], task_id: str, num_images: int = 0) -> list[int]:
        """Return the prompt's token ids; a conversation gets places for so many images. Any: as in the contract.

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
        if isinstance(value, str) and column == "prompt":
            if not (config.chat or config.system):
                return self.encode(tokenizer, value)
            value = [{"role": "user", "content": value}]
        where = f"the row of {task_id}"
        messages: Sequence[Mapping[str, Any]] = checked_messages(value, column, where)  # Any: as in chat templates
        if num_images:
            messages = self._support.parts(messages, num_images, config.image_marker)
        text = Renderer(tokenizer, config, data, where)(messages, ask=True)
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    def encode(self, tokenizer: Tokenizer, prompt: str) -> list[int]:
        """Tokenise a prompt once for all members of its group, which ask one after the other."""
        if prompt not in self.encoded:
            self.encoded[prompt] = tokenizer.encode(prompt, add_special_tokens=self._config.add_special_tokens)
            if len(self.encoded) > REMEMBERED_PROMPTS:
                self.encoded.popitem(last=False)
        return list(self.encoded[prompt])

    async def images_of(self, data: Mapping[str, Any], task_id: str) -> tuple[bytes, ...]:
        """Return a row's images as files, made beside the event loop, once for all members of its group.

        Any: as in the contract.
        """
        value = data.get(IMAGES)
        if value is None:
            return ()
        if self._reader is None:
            self._reader = self._support.reader(REMEMBERED_IMAGES)
        folder, where = Path(self._config.image_folder), f"in the row of {task_id}"
        return await asyncio.to_thread(self._reader.read, value, folder, where)

    @cached_property
    def _support(self) -> ImageSupport:
        found: ImageSupport = need("images", "a data set with images")
        return found


def _checked_ids(value: object, task_id: str) -> list[int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, int) for i in value):
        raise _wrong("input_ids", value, "a list of token ids", task_id)
    return list(value)


def _check_places(prompt_ids: Sequence[int], placeholder: int | None, num_images: int, task_id: str) -> None:
    count = 0 if placeholder is None else prompt_ids.count(placeholder)
    if count == num_images:
        return
    if placeholder is None:
        raise DatasetError(
            f"the row of {task_id} has {num_images} images, and the model takes none",
            why="its config.json names no image_token_id beside a vision_config",
            fix="use a vision-language model, or a data set without the column 'images'",
        )
    raise DatasetError(
        f"the row of {task_id} has {num_images} images, and its prompt has places for {count}",
        why=f"each token {placeholder} of the prompt, the model's image_token_id, stands for one image",
        fix="have the chat template put them there (messages, or chat: true), or write the model's own tokens into a "
        "plain prompt, such as <|vision_start|><|image_pad|><|vision_end|>",
    )


def _wrong(column: str, value: object, wanted: str, task_id: str) -> DatasetError:
    return DatasetError(
        f"column {column!r} in the row of {task_id} is of type {type(value).__name__}",
        why=f"it must be {wanted}; it begins with {str(value)[:60]!r}",
        fix="check the data set",
    )
