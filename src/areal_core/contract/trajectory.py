"""From what an engine generated to what the trainer learns from. Token ids are taken as they are.

Knows: how log-probs, version spans and the loss mask line up with tokens.
Does not know: any tokenizer: ids are never decoded and encoded again, so they cannot drift.

Example, a conversation of two turns with a tool's answer between them:
    turns = TrajectoryBuilder(prompt_ids)
    turns.add_generation(await session.generate(turns.input_ids))
    turns.add_environment(tool_answer_ids)
    turns.add_generation(await session.generate(turns.input_ids))
    trajectory = turns.build(reward=1.0)

With images each turn is asked with those so far: generate(turns.input_ids, images=turns.images).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.errors import BatchError
from areal_core.contract.train import ROUTED_EXPERTS

if TYPE_CHECKING:
    from torch import Tensor

    from areal_core.contract.inference import Generation

NO_VERSION = -1
"""The version of a token no policy computed."""


def from_generation(
    prompt_ids: Sequence[int],
    generation: Generation,
    reward: float,
    *,
    images: Sequence[bytes] = (),
    sequence_extras: Mapping[str, Tensor] | None = None,
) -> Trajectory:
    """Make the trajectory of one prompt, its images and its one generation, trained on every generated token.

    Raises:
        BatchError: the generation's log-probs or version spans do not cover its output.
    """
    builder = TrajectoryBuilder(prompt_ids, images)
    builder.add_generation(generation)
    return builder.build(reward, sequence_extras=sequence_extras)


class TrajectoryBuilder:
    """Collects prompt, generated and environment tokens in order. One per trajectory, inside a workflow."""

    def __init__(self, prompt_ids: Sequence[int] = (), images: Sequence[bytes] = ()) -> None:
        self._ids, self._mask = array("q"), bytearray()
        self._logprobs, self._versions = array("f"), array("i")
        self._extras: list[tuple[int, Mapping[str, Tensor]]] = []
        self._stop_reason: StopReason | None = None
        self._images: list[bytes] = []
        self.add_environment(prompt_ids, images)

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Return every token so far: what the next `generate` is called with."""
        return tuple(self._ids)

    @property
    def images(self) -> tuple[bytes, ...]:
        """Return every image so far: what the next `generate` is called with, beside the tokens."""
        return tuple(self._images)

    def add_environment(self, token_ids: Sequence[int], images: Sequence[bytes] = ()) -> None:
        """Append tokens the policy did not make: prompts, tool answers, turn markers. Not trained on.

        `images` are PNG or JPEG files, one for each placeholder among the tokens, in their order.
        """
        self._images += images
        count = len(token_ids)
        self._ids.extend(token_ids)
        self._mask += bytes(count)
        self._logprobs += array("f", (0.0,)) * count
        self._versions += array("i", (NO_VERSION,)) * count

    def add_generation(self, generation: Generation, *, train: bool = True) -> None:
        """Append what the policy generated; without `train` as context only.

        Raises:
            BatchError: log-probs or version spans do not cover the output, or a log-prob is not finite.
        """
        versions = _versions(generation)
        _check_logprobs(generation)
        self._stop_reason = generation.stop_reason
        if not train:
            self.add_environment(generation.output_ids)
            return
        if generation.token_extras:
            self._extras.append((len(self._ids), generation.token_extras))
        self._ids.extend(generation.output_ids)
        self._mask += b"\1" * len(versions)
        self._logprobs.extend(generation.logprobs)
        self._versions += versions

    def build(self, reward: float, *, sequence_extras: Mapping[str, Tensor] | None = None) -> Trajectory:
        """Return the trajectory. Its stop reason is the last generation's.

        Token columns a generation brought are 0 where no generation brought any, and routed experts -1: not recorded.

        Raises:
            BatchError: nothing was generated, or the reward is not a finite number.
        """
        if self._stop_reason is None:
            raise BatchError("the trajectory holds no generation", fix="call add_generation at least once")
        if not math.isfinite(reward):
            raise BatchError(f"the reward is {reward}", why="it must be a finite number")
        return Trajectory(
            input_ids=_column(self._ids, torch.int64),
            loss_mask=_column(self._mask, torch.bool),
            logprobs=_column(self._logprobs, torch.float32),
            versions=_column(self._versions, torch.int32),
            reward=float(reward),
            stop_reason=self._stop_reason,
            token_extras=self._token_columns(),
            sequence_extras=sequence_extras or {},
            images=self._images,
        )

    def _token_columns(self) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = {}
        for start, extras in self._extras:
            for name, values in extras.items():
                absent = -1 if name == ROUTED_EXPERTS else 0
                column = columns.setdefault(name, values.new_full((len(self._ids), *values.shape[1:]), absent))
                column[start : start + len(values)] = values
        return columns


def _column(values: array[int] | array[float] | bytearray, dtype: torch.dtype) -> Tensor:
    """Return a copy as a tensor: the builder may go on."""
    memory = bytearray(values)
    return torch.frombuffer(memory, dtype=dtype) if memory else torch.empty(0, dtype=dtype)


def _versions(generation: Generation) -> array[int]:
    """Spread the version spans over the output tokens."""
    versions, newest = array("i"), NO_VERSION
    for span in generation.version_spans:
        if span.start != len(versions) or span.stop <= span.start or span.version < newest:
            raise BatchError(
                f"version span [{span.start}, {span.stop}) of version {span.version} does not follow token "
                f"{len(versions)} of version {newest}",
                why="spans cover the output without gap or overlap, and versions never decrease",
            )
        newest = span.version
        versions += array("i", (newest,)) * (span.stop - span.start)
    if len(versions) != len(generation.output_ids):
        raise BatchError(
            f"version spans cover {len(versions)} of {len(generation.output_ids)} generated tokens",
            why="staleness is computed from the version of every generated token",
        )
    return versions


def _check_logprobs(generation: Generation) -> None:
    if len(generation.logprobs) != len(generation.output_ids):
        raise BatchError(
            f"{len(generation.logprobs)} log-probs for {len(generation.output_ids)} generated tokens",
            why="each generated token needs the log-prob it was sampled with",
        )
    if all(map(math.isfinite, generation.logprobs)):
        return
    for position, logprob in enumerate(generation.logprobs):
        if not math.isfinite(logprob):
            raise BatchError(
                f"generated token {position} has log-prob {logprob}", why="a sampled token has a finite one"
            )
