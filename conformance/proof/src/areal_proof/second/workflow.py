"""A second workflow: two turns, written without the core's builder. Answer, be asked to think again, answer.

Knows: how two generations and what stands between them become one trajectory.
Does not know: any other implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import BatchError, DatasetError, RewardFailed
from areal_core.contract.inference import Generation
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, Session

BETWEEN = "-again>"


@frozen(kw_only=True)
class SecondConfig:
    """Which adapter is asked between its turns, none if empty."""

    asks: str = ""


class SecondWorkflow:
    """Satisfies `contract.RolloutWorkflow`. Holds its options."""

    def __init__(self, config: SecondConfig | None = None) -> None:
        self.config = config or SecondConfig()

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode | Trajectory:
        """Ask twice and score the second answer. Any: as in the contract."""
        prompt = data.get("prompt")
        if not isinstance(prompt, str):
            raise DatasetError(
                f"the row of {engine.task_id} has no text 'prompt'", why=f"it has {list(data)}", fix="check the data"
            )
        context, images = self.ids_of(engine, prompt), self.images_of(engine, data)
        first = await engine.generate(context, images=images)
        middle = self.ids_of(engine, BETWEEN)
        if self.config.asks:
            thought = await engine.generate([*context, *first.output_ids], images=images, adapter=self.config.asks)
            middle = [*thought.output_ids, *middle]
        second = await engine.generate([*context, *first.output_ids, *middle], images=images)
        result = await self.scored(engine, data, prompt, second)
        made = self.joined([(context, None), ((), first), (middle, None), ((), second)], self.value(engine, result))
        made = evolve(made, images=images)
        return Episode(
            trajectories=(made,), task_id=engine.task_id, group_id=engine.group_id, metrics=dict(result.components)
        )

    def ids_of(self, engine: Session, text: str) -> list[int]:
        """Return token ids of a text without special tokens."""
        return engine.tokenizer.encode(text, add_special_tokens=False)

    def images_of(self, engine: Session, data: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Return the files in a row's column `images`, none if it has none. Any: as in the contract."""
        images = tuple(data.get("images") or ())
        if not all(isinstance(image, bytes) for image in images):
            raise DatasetError(f"the row of {engine.task_id} has images that are no files", fix="give bytes")
        return images

    async def score(self, engine: Session, data: Mapping[str, Any], prompt: str, last: Generation) -> float:
        """Return the reward of the last answer. Any: as in the contract."""
        return self.value(engine, await self.scored(engine, data, prompt, last))

    async def scored(self, engine: Session, data: Mapping[str, Any], prompt: str, last: Generation) -> RewardResult:
        """Return what the reward says of the last answer. Any: as in the contract."""
        return await engine.reward(
            RewardInput(
                prompt=prompt,
                completion=engine.tokenizer.decode(last.output_ids, skip_special_tokens=True),
                completion_ids=last.output_ids,
                stop_reason=last.stop_reason.value,
                row=data,
            )
        )

    def value(self, engine: Session, result: RewardResult) -> float:
        """Return the reward, if there is one."""
        if result.status != RewardStatus.OK or result.value is None:
            raise RewardFailed(f"no reward for {engine.task_id}: {result.status}", why=result.detail)
        return float(result.value)

    def joined(self, parts: list[tuple[Any, Generation | None]], reward: float) -> Trajectory:
        """Return the trajectory of prompts and generations in order. Any: token ids."""
        import torch

        if not abs(reward) < float("inf"):
            raise BatchError(f"the reward is {reward}", why="it is no finite number")
        ids: list[int] = []
        columns: dict[str, list[float]] = {"mask": [], "logprobs": [], "versions": []}
        for context, made in parts:
            tokens = list(context) if made is None else list(made.output_ids)
            ids += tokens
            columns["mask"] += [made is not None] * len(tokens)
            columns["logprobs"] += [0.0] * len(tokens) if made is None else list(made.logprobs)
            columns["versions"] += [-1] * len(tokens) if made is None else _versions(made)
        last = [made for _, made in parts if made is not None][-1]
        return Trajectory(
            input_ids=torch.tensor(ids),
            loss_mask=torch.tensor(columns["mask"], dtype=torch.bool),
            logprobs=torch.tensor(columns["logprobs"], dtype=torch.float32),
            versions=torch.tensor(columns["versions"], dtype=torch.int32),
            reward=reward,
            stop_reason=last.stop_reason,
            token_extras=_extras(parts),
        )


def _versions(made: Generation) -> list[float]:
    return [span.version for span in made.version_spans for _ in range(span.start, span.stop)]


def _extras(parts: list[tuple[Any, Generation | None]]) -> dict[str, Any]:
    """Return the token columns the generations brought; context has -1 for experts and 0 otherwise."""
    import torch

    names = {name for _, made in parts if made is not None for name in made.token_extras}
    columns: dict[str, Any] = {}
    for name in names:
        like = next(made.token_extras[name] for _, made in parts if made is not None and name in made.token_extras)
        pieces = []
        for context, made in parts:
            count = len(context) if made is None else len(made.output_ids)
            if made is not None and name in made.token_extras:
                pieces.append(made.token_extras[name])
            else:
                pieces.append(like.new_full((count, *like.shape[1:]), -1 if name == ROUTED_EXPERTS else 0))
        columns[name] = torch.cat(pieces)
    return columns
