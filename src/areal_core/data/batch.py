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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tensordict import TensorDict
from torch import Tensor

from areal_core.contract.data import Episode, StopReason
from areal_core.contract.errors import BatchError, StorageError

STOP_CODES: tuple[StopReason, ...] = (StopReason.STOP, StopReason.LENGTH, StopReason.TOOL_CALLS, StopReason.ABORTED)
"""`sequences["stop_reason"]` holds an index into this tuple."""


@frozen(kw_only=True, eq=False, slots=False)
class Batch:
    """N sequences of T tokens in all. Sequence i owns tokens [cu_seqlens[i], cu_seqlens[i + 1]), at least one.

    tokens, a TensorDict [T]:    input_ids int64, loss_mask bool, logprobs float32, versions int32,
                                 and whatever forward passes and algorithms add
    sequences, a TensorDict [N]: reward float32, stop_reason int8, group int64, episode int64, and more
    cu_seqlens:                  int32 [N + 1], starts with 0, ends with T

    N may be 0. Nothing writes into a column; the `with_` methods share tensors between batches.

    Raises:
        BatchError: a column has not one row per token (or sequence), or cu_seqlens does not fit. The
            values of cu_seqlens are read on the CPU only: on a device that would wait for the stream.
    """

    tokens: TensorDict
    sequences: TensorDict
    cu_seqlens: Tensor = field()

    def __attrs_post_init__(self) -> None:
        num_sequences = self.num_sequences
        if tuple(self.cu_seqlens.shape) != (num_sequences + 1,) or self.cu_seqlens.dtype != torch.int32:
            raise BatchError(
                f"cu_seqlens is {self.cu_seqlens.dtype} {tuple(self.cu_seqlens.shape)} for {num_sequences} sequences",
                why="it must be int32 with one entry more than there are sequences",
            )
        if self.cu_seqlens.is_cpu:
            self._check_boundaries()

    def _check_boundaries(self) -> None:
        first, last = int(self.cu_seqlens[0]), int(self.cu_seqlens[-1])
        if first != 0 or last != self.num_tokens:
            raise BatchError(
                f"cu_seqlens runs from {first} to {last}",
                why=f"it must run from 0 to the number of tokens, {self.num_tokens}",
            )
        unfit = (self.cu_seqlens.diff() < 1).nonzero()
        if len(unfit):
            raise BatchError(
                f"sequence {int(unfit[0])} of the batch has no tokens",
                why="attention kernels and per-sequence means have no answer for an empty sequence",
                fix="leave it out of the batch; a workflow rejects a row by returning None",
            )

    @classmethod
    def pack(cls, episodes: Sequence[Episode]) -> Batch:
        """Pack every trajectory of every episode, in order.

        `sequences["group"]` numbers the distinct group ids in order of appearance,
        `sequences["episode"]` the episodes. Extra columns must be on all trajectories or on none,
        with the same dtype and shape (per token, for `token_extras`).

        Raises:
            BatchError: trajectories disagree on an extra column, or one has no tokens.
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
            tokens[name] = torch.cat(_alike(name, [t.token_extras[name] for t in trajectories], from_dim=1))
        sequences = {
            "reward": torch.tensor([t.reward for t in trajectories], dtype=torch.float32),
            "stop_reason": torch.tensor([STOP_CODES.index(t.stop_reason) for t in trajectories], dtype=torch.int8),
            "group": torch.tensor([groups[episodes[number].group_id] for _, number in rows], dtype=torch.int64),
            "episode": torch.tensor([number for _, number in rows], dtype=torch.int64),
        }
        for name in _common_names([t.sequence_extras for t in trajectories]):
            sequences[name] = torch.stack(_alike(name, [t.sequence_extras[name] for t in trajectories], from_dim=0))
        return cls.of(tokens, sequences, lengths)

    @classmethod
    def of(cls, tokens: Mapping[str, Tensor], sequences: Mapping[str, Tensor], lengths: Tensor) -> Batch:
        """Build a batch from plain columns and the length of each sequence (int64 [N])."""
        cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        cu_seqlens[1:] = lengths.cumsum(0)
        return cls(
            tokens=_table("token", tokens, int(lengths.sum())),
            sequences=_table("sequence", sequences, len(lengths)),
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
        tokens = _table("token", {**_columns(self.tokens), **columns}, self.num_tokens)
        return Batch(tokens=tokens, sequences=self.sequences, cu_seqlens=self.cu_seqlens)

    def with_sequences(self, **columns: Tensor) -> Batch:
        """Return a batch with these sequence columns added or replaced; the tensors are shared, not copied."""
        sequences = _table("sequence", {**_columns(self.sequences), **columns}, self.num_sequences)
        return Batch(tokens=self.tokens, sequences=sequences, cu_seqlens=self.cu_seqlens)

    def select(self, rows: Sequence[int] | Tensor) -> Batch:
        """Return these sequences, by number and in this order, tokens and all; or those where a bool [N] is True."""
        index = torch.as_tensor(rows, device=self.device)
        index = index.nonzero().flatten() if index.dtype == torch.bool else index.to(torch.int64)
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
        """Return all sequences of all batches, in order.

        Group and episode numbers are kept, so the batches must come from one `pack`: numbers of
        another one would name other groups.

        Raises:
            BatchError: no batch is given, or they differ in their columns or a column's dtype or shape.
        """
        if not batches:
            raise BatchError("no batch to concatenate", why="the columns of an empty batch would be unknown")
        return cls.of(
            _concat_tables([_columns(batch.tokens) for batch in batches]),
            _concat_tables([_columns(batch.sequences) for batch in batches]),
            torch.cat([batch.lengths for batch in batches]),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on another device."""
        return Batch(
            tokens=self.tokens.to(device), sequences=self.sequences.to(device), cu_seqlens=self.cu_seqlens.to(device)
        )

    def save(self, path: Path) -> None:
        """Write every column to one safetensors file. The file appears whole or not at all.

        Raises:
            StorageError: the file cannot be written.
        """
        # Columns may share memory (a copy of a column by name only), which safetensors refuses.
        columns = {name: column.detach().cpu().clone() for name, column in self.flat().items()}
        partial = path.with_name(path.name + ".partial")
        try:
            save_file(columns, partial)
            partial.replace(path)
        except (OSError, SafetensorError) as exc:
            partial.unlink(missing_ok=True)
            raise StorageError(f"cannot write the batch to {path}", why=str(exc)) from exc

    @classmethod
    def load(cls, path: Path) -> Batch:
        """Read a file `save` wrote; bit for bit the same batch, on the CPU.

        Raises:
            BatchError: the file is not one `save` wrote.
            FileNotFoundError: there is none.
        """
        try:
            with safe_open(path, framework="pt") as file:
                return cls.from_flat({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except SafetensorError as exc:
            raise BatchError(f"{path} holds no batch", why=f"it is not a safetensors file: {exc}") from exc

    def flat(self) -> dict[str, Tensor]:
        """Return every column under `tokens/<name>`, `sequences/<name>` and `cu_seqlens`."""
        return {
            **{f"tokens/{name}": column for name, column in _columns(self.tokens).items()},
            **{f"sequences/{name}": column for name, column in _columns(self.sequences).items()},
            "cu_seqlens": self.cu_seqlens,
        }

    @classmethod
    def from_flat(cls, columns: Mapping[str, Tensor]) -> Batch:
        """Undo `flat`; the tensors are shared, not copied.

        Raises:
            BatchError: a name `flat` cannot have given, or no `cu_seqlens`.
        """
        tables: dict[str, dict[str, Tensor]] = {"tokens": {}, "sequences": {}, "cu_seqlens": {}}
        for path, column in columns.items():
            table, _, name = path.partition("/")
            if table not in tables or (table == "cu_seqlens") != (name == ""):
                raise BatchError(f"{path!r} names no column", why="names are tokens/*, sequences/* and cu_seqlens")
            tables[table][name] = column
        if "cu_seqlens" not in columns:
            raise BatchError("the columns hold no cu_seqlens", why="it says where each sequence begins")
        cu_seqlens = columns["cu_seqlens"]
        return cls(
            tokens=_table("token", tables["tokens"], int(cu_seqlens[-1])),
            sequences=_table("sequence", tables["sequences"], len(cu_seqlens) - 1),
            cu_seqlens=cu_seqlens,
        )


def _columns(table: TensorDict) -> dict[str, Tensor]:
    return {str(name): column for name, column in table.items()}


def _table(kind: str, columns: Mapping[str, Tensor], num_rows: int) -> TensorDict:
    for name, column in columns.items():
        if column.ndim == 0 or column.shape[0] != num_rows:
            raise BatchError(
                f"{kind} column {name!r} has shape {tuple(column.shape)} for {num_rows} {kind}s",
                why=f"it needs one row per {kind}",
            )
    return TensorDict(dict(columns), batch_size=[num_rows])


def _concat_tables(tables: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    names = set(tables[0])
    for table in tables:
        if set(table) != names:
            raise BatchError(
                f"batches differ in their columns {sorted(set(table) ^ names)}",
                why="a concatenated column needs a value for every row",
            )
    return {name: torch.cat(_alike(name, [table[name] for table in tables], from_dim=1)) for name in tables[0]}


def _alike(name: str, columns: Sequence[Tensor], *, from_dim: int) -> list[Tensor]:
    kinds = {(column.dtype, tuple(column.shape[from_dim:])) for column in columns}
    if len(kinds) > 1:
        raise BatchError(
            f"column {name!r} differs from sequence to sequence: {sorted(map(str, kinds))}",
            why="a packed column has one dtype and one shape",
        )
    return list(columns)


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
