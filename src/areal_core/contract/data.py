"""What rollouts hand to training: tokens that carry their origin.

Knows: one trajectory and one episode.
Does not know: how many are packed together (`areal_core.contract.batch`) or who trains on them.

Alignment, everywhere in areal: a column at position t describes the token at position t.
`logprobs[t] = log p(token t | tokens < t)`. Nothing is shifted by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from attrs import Factory, field, frozen

from areal_core.contract.errors import BatchError
from areal_core.contract.ids import GroupId, TaskId

if TYPE_CHECKING:
    from torch import Tensor


class StopReason(StrEnum):
    """Why generation ended. `length` means truncated: no end token was sampled."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORTED = "aborted"


PIXEL_VALUES = "pixel_values"
"""Among `Trajectory.media`: the patches of a sequence's images, one after another, float32 [patches, width]."""
IMAGE_GRID = "image_grid_thw"
"""Among `Trajectory.media`: the patches of each image in time (1), height and width, int64 [images, 3]."""
IMAGE_TOKENS = "image_tokens"
"""Token column, bool [T]: True where a token stands for a part of an image. An image is one run of such tokens; all
runs of a sequence are its images in order. A placeholder that the policy generated is a token like any other."""


def _frozen_mapping(value: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(value))


@frozen(kw_only=True, eq=False)
class Trajectory:
    """One token sequence the trainer can learn from.

    Example (prompt of two tokens, three generated, the last two under newer weights):
        Trajectory(
            input_ids=tensor([5, 9, 4, 7, 1]),                 # int64 [L]
            loss_mask=tensor([0, 0, 1, 1, 1], dtype=bool),     # True where generated and trained on
            logprobs=tensor([0, 0, -0.7, -0.1, -0.2]),         # float32 [L], of the sampling policy; 0 off-mask
            versions=tensor([-1, -1, 3, 4, 4], dtype=int32),   # weights that computed the token; -1 off-mask
            reward=1.0, stop_reason=StopReason.STOP)

    `token_extras` are per-token columns [L, ...] (routed experts, ...); `sequence_extras`
    are per-sequence tensors of any shape (image features, ...). Both travel with the tokens.

    `images` are image files (PNG, JPEG) in the order of their placeholders in `input_ids`, one token each, as an
    inference request carries them. Before it is trained on, the core makes `media` of them: what the model's own
    processor gives, under the names its forward pass takes, with any number of rows: `PIXEL_VALUES`, `IMAGE_GRID`.
    Then each placeholder has become as many tokens as its image takes, marked in the column `IMAGE_TOKENS`.

    Raises:
        BatchError: lengths differ, a dtype is wrong, or a generated token has no version.
    """

    input_ids: Tensor
    loss_mask: Tensor
    logprobs: Tensor
    versions: Tensor
    reward: float
    stop_reason: StopReason = field(converter=StopReason)
    token_extras: Mapping[str, Tensor] = field(factory=dict, converter=_frozen_mapping)
    sequence_extras: Mapping[str, Tensor] = field(factory=dict, converter=_frozen_mapping)
    images: tuple[bytes, ...] = field(default=(), converter=tuple[bytes, ...], repr=False)
    media: Mapping[str, Tensor] = field(factory=dict, converter=_frozen_mapping)

    def __attrs_post_init__(self) -> None:
        length = self.input_ids.shape[0] if self.input_ids.ndim == 1 else -1
        wanted = {"input_ids": "int64", "loss_mask": "bool", "logprobs": "float32", "versions": "int32"}
        for name, dtype in wanted.items():
            column = getattr(self, name)
            if column.shape != (length,) or str(column.dtype) != f"torch.{dtype}":
                raise BatchError(
                    f"trajectory column {name!r} is {column.dtype} {tuple(column.shape)}",
                    why=f"it must be {dtype} [{max(length, 0)}], one entry per token",
                    fix="build trajectories with areal_core.contract.trajectory.from_generation",
                )
        for name, column in self.token_extras.items():
            if column.shape[0] != length:
                raise BatchError(
                    f"token column {name!r} has {column.shape[0]} rows for {length} tokens",
                    fix="one row per token, or put it into sequence_extras",
                )
        # numpy's: on so few numbers an operation of torch takes several times as long
        if self.versions.numpy(force=True).min(where=self.loss_mask.numpy(force=True), initial=0) < 0:
            raise BatchError(
                "a generated token carries no policy version",
                why="it must be known which weights computed a token that is trained on, and an adapter's are not them",
                fix="copy the versions of Generation.version_spans; add_generation(.., train=False) if they are -1",
            )

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])


@frozen(kw_only=True, eq=False)
class Episode:
    """What one run of a workflow produced: one or more trajectories of one task.

    Several trajectories belong to one episode when an agent's context branched; they
    share the task and the group. Members of a sampling group are separate episodes
    with the same `group_id`.
    """

    trajectories: tuple[Trajectory, ...] = field(converter=tuple[Trajectory, ...])
    task_id: TaskId
    group_id: GroupId
    metrics: Mapping[str, float] = Factory(dict)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among the generated tokens; -1 if none was generated."""
        return min((int(t.versions[t.loss_mask].min()) for t in self.trajectories if t.loss_mask.any()), default=-1)

    @property
    def newest_version(self) -> int:
        """The newest policy version among the generated tokens; -1 if none was generated."""
        return max((int(t.versions[t.loss_mask].max()) for t in self.trajectories if t.loss_mask.any()), default=-1)
