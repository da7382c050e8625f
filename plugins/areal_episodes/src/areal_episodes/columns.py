"""Episodes as bytes: every column of many trajectories in one safetensors blob, and back bit for bit.

Knows: the names of columns in the blob.
Does not know: where blobs lie (`store`), or who made the episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import xxhash
from attrs import frozen
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from areal_core.contract.batch import STOP_CODES
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import StorageError
from areal_core.contract.ids import GroupId, TaskId

_STORED = {"input_ids": torch.int32, "versions": torch.int32, "logprobs": torch.float32, "loss_mask": torch.uint8}
"""Token columns that every trajectory has, and how they are stored. Token ids fit into 32 bits."""
_NO_VERSION = torch.iinfo(torch.int32).max


@frozen
class Packed:
    """Trajectories end to end. `lengths` int64 [N]; token columns [sum of lengths]."""

    lengths: Tensor
    columns: Mapping[str, Tensor]

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Packed:
        """Put trajectories together; columns keep their dtype."""
        lengths = torch.tensor([len(trajectory) for trajectory in trajectories], dtype=torch.int64)
        columns = {
            name: torch.cat([getattr(t, name) for t in trajectories]) if trajectories else torch.zeros(0)
            for name in _STORED
        }
        return cls(lengths, columns)

    def generated(self) -> list[tuple[int, int | None, int | None]]:
        """Return, per trajectory: generated tokens, their oldest and newest version (None without one)."""
        count = len(self.lengths)
        owner = torch.arange(count).repeat_interleave(self.lengths)
        mask = self.columns["loss_mask"].bool()
        owner, versions = owner[mask], self.columns["versions"][mask].to(torch.int32)
        tokens = torch.bincount(owner, minlength=count).tolist()
        lowest = torch.full((count,), _NO_VERSION, dtype=torch.int32)
        oldest = lowest.scatter_reduce_(0, owner, versions, "amin").tolist()
        newest = torch.full((count,), -1, dtype=torch.int32).scatter_reduce_(0, owner, versions, "amax").tolist()
        return [
            (number, low if number else None, high if number else None)
            for number, low, high in zip(tokens, oldest, newest, strict=True)
        ]


def to_bytes(trajectories: Sequence[Trajectory], packed: Packed | None = None) -> bytes:
    """Return the columns of trajectories, extra ones, images and media among them."""
    packed = packed or Packed.of(trajectories)
    columns: dict[str, Tensor] = {
        "lengths": packed.lengths.to(torch.int32),
        "reward": torch.tensor([trajectory.reward for trajectory in trajectories], dtype=torch.float64),
        "stop_reason": torch.tensor([STOP_CODES.index(t.stop_reason) for t in trajectories], dtype=torch.int8),
    }
    columns |= {name: packed.columns[name].to(dtype).clone() for name, dtype in _STORED.items()}
    for number, trajectory in enumerate(trajectories):
        extras: dict[str, Mapping[str, Tensor]] = {
            "token": trajectory.token_extras,
            "sequence": trajectory.sequence_extras,
            "media": trajectory.media,
        }
        for kind, mapping in extras.items():
            for name, value in mapping.items():
                columns[f"{kind}/{number}/{name}"] = value.detach().cpu().clone()
        for place, image in enumerate(trajectory.images):
            columns[f"image/{number}/{place}"] = torch.frombuffer(bytearray(image), dtype=torch.uint8)
    blob: bytes = save({name: column.contiguous() for name, column in columns.items()})
    return blob


def checksum(blob: bytes) -> str:
    """Return what `from_bytes` compares: 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(blob)


def from_bytes(blob: bytes, expected: str, where: str) -> tuple[Trajectory, ...]:
    """Undo `to_bytes`.

    Raises:
        StorageError: the bytes are not those that were written; `where` names them.
    """
    if checksum(blob) != expected:
        raise StorageError(
            f"{where} is damaged",
            why=f"its checksum is {checksum(blob)}, it was written with {expected}",
            fix="check the disk; its episodes are left out and their prompts issued again",
        )
    try:
        columns = load(blob)
        lengths = columns["lengths"].tolist()
        parts = {name: columns[name].split(lengths) for name in _STORED}
        extras = _extras(columns, len(lengths))
        return tuple(
            Trajectory(
                input_ids=parts["input_ids"][number].to(torch.int64),
                loss_mask=parts["loss_mask"][number].to(torch.bool),
                logprobs=parts["logprobs"][number],
                versions=parts["versions"][number],
                reward=float(columns["reward"][number]),
                stop_reason=STOP_CODES[int(columns["stop_reason"][number])],
                token_extras=extras["token"][number],
                sequence_extras=extras["sequence"][number],
                media=extras["media"][number],
                images=tuple(
                    image.numpy().tobytes() for _, image in sorted(extras["image"][number].items(), key=_place)
                ),
            )
            for number in range(len(lengths))
        )
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise StorageError(f"{where} holds no episodes", why=str(error)) from error


def episode(trajectories: Sequence[Trajectory], task_id: str, metrics: Mapping[str, float]) -> Episode:
    """Return the episode of a task; its group is the task."""
    return Episode(trajectories=trajectories, task_id=TaskId(task_id), group_id=GroupId(task_id), metrics=dict(metrics))


def _extras(columns: Mapping[str, Tensor], count: int) -> dict[str, list[dict[str, Tensor]]]:
    """Return kind -> one mapping per trajectory."""
    found: dict[str, list[dict[str, Tensor]]] = {
        kind: [{} for _ in range(count)] for kind in ("token", "sequence", "media", "image")
    }
    for path, column in columns.items():
        kind, _, rest = path.partition("/")
        if kind in found and rest:
            number, _, name = rest.partition("/")
            found[kind][int(number)][name] = column
    return found


def _place(item: tuple[str, Tensor]) -> int:
    return int(item[0])
