"""Sequences packed end to end: the only layout a batch has. There is no padding to mistake for data.

Knows: two tables kept apart, one row per token and one row per sequence.
Does not know: how many tokens fit anywhere (`areal_core.data.balance`) or what a loss is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from attrs import field, frozen
from safetensors import safe_open
from safetensors.torch import save_file
from tensordict import TensorDict
from torch import Tensor

from areal_core.contract.data import Episode, StopReason
from areal_core.contract.errors import BatchError

STOP_CODES: tuple[StopReason, ...] = (StopReason.STOP, StopReason.LENGTH, StopReason.TOOL_CALLS, StopReason.ABORTED)
"""`sequences["stop_reason"]` holds an index into this tuple."""


@frozen(kw_only=True, eq=False, slots=False)
class Batch:
    """N sequences of T tokens in all. Sequence i owns tokens [cu_seqlens[i], cu_seqlens[i + 1]).

    tokens, a TensorDict [T]:    input_ids int64, loss_mask bool, logprobs float32, versions int32,
                                 and whatever forward passes and algorithms add
    sequences, a TensorDict [N]: reward float32, stop_reason int8, group int64, episode int64, and more
    cu_seqlens:                  int32 [N + 1], starts with 0, ends with T
    """

    tokens: TensorDict
    sequences: TensorDict
    cu_seqlens: Tensor = field()

    def __attrs_post_init__(self) -> None:
        num_tokens, num_sequences = self.tokens.batch_size[0], self.sequences.batch_size[0]
        if tuple(self.cu_seqlens.shape) != (num_sequences + 1,) or self.cu_seqlens.dtype != torch.int32:
            raise BatchError(
                f"cu_seqlens is {self.cu_seqlens.dtype} {tuple(self.cu_seqlens.shape)} for {num_sequences} sequences",
                why="it must be int32 with one entry more than there are sequences",
            )
        if int(self.cu_seqlens[0]) != 0 or int(self.cu_seqlens[-1]) != num_tokens:
            raise BatchError(
                f"cu_seqlens runs from {int(self.cu_seqlens[0])} to {int(self.cu_seqlens[-1])}",
                why=f"it must run from 0 to the number of tokens, {num_tokens}",
            )

    @classmethod
    def pack(cls, episodes: Sequence[Episode]) -> Batch:
        """Pack every trajectory of every episode, in order.

        `sequences["group"]` numbers the distinct group ids in order of appearance,
        `sequences["episode"]` the episodes. Extra columns must be on all trajectories or on none.

        Raises:
            BatchError: trajectories disagree on which extra columns they have.
        """
        rows = [(trajectory, number) for number, episode in enumerate(episodes) for trajectory in episode.trajectories]
        groups = {name: code for code, name in enumerate(dict.fromkeys(episode.group_id for episode in episodes))}
        trajectories = [trajectory for trajectory, _ in rows]
        lengths = torch.tensor([len(t) for t in trajectories], dtype=torch.int64)
        tokens = {
            "input_ids": _cat([t.input_ids for t in trajectories], torch.int64),
            "loss_mask": _cat([t.loss_mask for t in trajectories], torch.bool),
            "logprobs": _cat([t.logprobs for t in trajectories], torch.float32),
            "versions": _cat([t.versions for t in trajectories], torch.int32),
        }
        for name in _common_names([t.token_extras for t in trajectories]):
            tokens[name] = torch.cat([t.token_extras[name] for t in trajectories])
        sequences = {
            "reward": torch.tensor([t.reward for t in trajectories], dtype=torch.float32),
            "stop_reason": torch.tensor([STOP_CODES.index(t.stop_reason) for t in trajectories], dtype=torch.int8),
            "group": torch.tensor([groups[episodes[number].group_id] for _, number in rows], dtype=torch.int64),
            "episode": torch.tensor([number for _, number in rows], dtype=torch.int64),
        }
        for name in _common_names([t.sequence_extras for t in trajectories]):
            sequences[name] = torch.stack([t.sequence_extras[name] for t in trajectories])
        return cls.of(tokens, sequences, lengths)

    @classmethod
    def of(cls, tokens: Mapping[str, Tensor], sequences: Mapping[str, Tensor], lengths: Tensor) -> Batch:
        """Build a batch from plain columns and the length of each sequence (int64 [N])."""
        cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        cu_seqlens[1:] = lengths.cumsum(0)
        return cls(
            tokens=TensorDict(dict(tokens), batch_size=[int(lengths.sum())]),
            sequences=TensorDict(dict(sequences), batch_size=[len(lengths)]),
            cu_seqlens=cu_seqlens,
        )

    @property
    def num_tokens(self) -> int:
        """Return T."""
        return int(self.tokens.batch_size[0])

    @property
    def num_sequences(self) -> int:
        """Return N."""
        return int(self.sequences.batch_size[0])

    @property
    def device(self) -> torch.device:
        """Return where the columns live."""
        return self.cu_seqlens.device

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens per sequence, int64 [N]."""
        return self.cu_seqlens.diff().to(torch.int64)

    @cached_property
    def sequence_ids(self) -> Tensor:
        """The sequence each token belongs to, int64 [T]."""
        numbers = torch.arange(self.num_sequences, device=self.device)
        return numbers.repeat_interleave(self.lengths, output_size=self.num_tokens)

    @cached_property
    def positions(self) -> Tensor:
        """The place of each token within its sequence, from 0, int64 [T]."""
        return torch.arange(self.num_tokens, device=self.device) - self.cu_seqlens.to(torch.int64)[self.sequence_ids]

    def with_tokens(self, **columns: Tensor) -> Batch:
        """Return a batch with these token columns added or replaced; the tensors are shared, not copied."""
        tokens = TensorDict({**_columns(self.tokens), **columns}, batch_size=self.tokens.batch_size)
        return Batch(tokens=tokens, sequences=self.sequences, cu_seqlens=self.cu_seqlens)

    def with_sequences(self, **columns: Tensor) -> Batch:
        """Return a batch with these sequence columns added or replaced; the tensors are shared, not copied."""
        sequences = TensorDict({**_columns(self.sequences), **columns}, batch_size=self.sequences.batch_size)
        return Batch(tokens=self.tokens, sequences=sequences, cu_seqlens=self.cu_seqlens)

    def select(self, rows: Sequence[int] | Tensor) -> Batch:
        """Return the named sequences in the named order, tokens and all."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.device)
        lengths = self.lengths[index]
        starts = self.cu_seqlens.to(torch.int64)[:-1][index]
        ends = lengths.cumsum(0)
        total = int(ends[-1]) if len(index) else 0
        offsets = torch.arange(total, device=self.device) - (ends - lengths).repeat_interleave(lengths)
        token_index = starts.repeat_interleave(lengths) + offsets
        return Batch.of(
            {name: column[token_index] for name, column in _columns(self.tokens).items()},
            {name: column[index] for name, column in _columns(self.sequences).items()},
            lengths,
        )

    def split(self, plan: Sequence[Sequence[int]]) -> list[Batch]:
        """Return one batch per list of sequence numbers. `concat` of them, reordered, is this batch again."""
        return [self.select(rows) for rows in plan]

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """Return all sequences of all batches, in order. The batches must have the same columns."""
        tokens = {n: torch.cat([_columns(b.tokens)[n] for b in batches]) for n in _columns(batches[0].tokens)}
        sequences = {n: torch.cat([_columns(b.sequences)[n] for b in batches]) for n in _columns(batches[0].sequences)}
        return cls.of(tokens, sequences, torch.cat([b.lengths for b in batches]))

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on another device."""
        return Batch(
            tokens=self.tokens.to(device), sequences=self.sequences.to(device), cu_seqlens=self.cu_seqlens.to(device)
        )

    def save(self, path: Path) -> None:
        """Write every column to one safetensors file."""
        save_file({name: column.contiguous().cpu() for name, column in self.flat().items()}, path)

    @classmethod
    def load(cls, path: Path) -> Batch:
        """Read a file `save` wrote; bit for bit the same batch, on the CPU."""
        with safe_open(path, framework="pt") as file:
            return cls.from_flat({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

    def flat(self) -> dict[str, Tensor]:
        """Return every column under `tokens/<name>`, `sequences/<name>` and `cu_seqlens`."""
        return {
            **{f"tokens/{name}": column for name, column in _columns(self.tokens).items()},
            **{f"sequences/{name}": column for name, column in _columns(self.sequences).items()},
            "cu_seqlens": self.cu_seqlens,
        }

    @classmethod
    def from_flat(cls, columns: Mapping[str, Tensor]) -> Batch:
        """Undo `flat`."""
        tables: dict[str, dict[str, Tensor]] = {"tokens": {}, "sequences": {}}
        for path, column in columns.items():
            table, _, name = path.partition("/")
            if name:
                tables[table][name] = column
        cu_seqlens = columns["cu_seqlens"]
        return cls(
            tokens=TensorDict(tables["tokens"], batch_size=[int(cu_seqlens[-1])]),
            sequences=TensorDict(tables["sequences"], batch_size=[len(cu_seqlens) - 1]),
            cu_seqlens=cu_seqlens,
        )


def _columns(table: TensorDict) -> dict[str, Tensor]:
    return {str(name): column for name, column in table.items()}


def _cat(columns: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(columns)) if columns else torch.zeros(0, dtype=dtype)


def _common_names(extras: Sequence[Mapping[str, Tensor]]) -> list[str]:
    names = sorted({name for mapping in extras for name in mapping})
    for name in names:
        missing = sum(name not in mapping for mapping in extras)
        if missing:
            raise BatchError(
                f"extra column {name!r} is missing from {missing} of {len(extras)} trajectories",
                why="a packed column needs a value for every token or sequence",
                fix=f"let the workflow give {name!r} on every trajectory, or on none",
            )
    return names
