"""Sequences packed end to end: the only layout a batch has. There is no padding to mistake for data.

Knows: two tables kept apart, one row per token and one row per sequence, and media beside them.
Does not know: how many tokens fit anywhere, which sequences go together (the extension `balance`) or what a loss is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from attrs import field, frozen
from tensordict import TensorDict
from torch import Tensor

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import BatchError
from areal_core.contract.media import Media, alike, concat_media, pack_media, runs

STOP_CODES: tuple[StopReason, ...] = (StopReason.STOP, StopReason.LENGTH, StopReason.TOOL_CALLS, StopReason.ABORTED)
"""`sequences["stop_reason"]` holds an index into this tuple."""


@frozen(kw_only=True, eq=False, slots=False)
class Batch:
    """N sequences of T tokens in all. Sequence i owns tokens [cu_seqlens[i], cu_seqlens[i + 1]), at least one.

    tokens, a TensorDict [T]:    input_ids int64, loss_mask bool, logprobs float32, versions int32,
                                 and whatever forward passes and algorithms add
    sequences, a TensorDict [N]: reward float32, stop_reason int8, group int64, episode int64, and more
    cu_seqlens:                  int32 [N + 1], starts with 0, ends with T
    media, Media by name:        pixel_values, image_grid_thw of sequences with images; else empty

    N may be 0. Nothing writes into a column; the `with_` methods share tensors between batches.

    Raises:
        BatchError: a column has not one row per token (or sequence), or cu_seqlens or counts of media do not
            fit. Their values are read on the CPU only: on a device that would wait for the stream.
    """

    tokens: TensorDict
    sequences: TensorDict
    cu_seqlens: Tensor = field()
    media: Mapping[str, Media] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        num_sequences = self.num_sequences
        if tuple(self.cu_seqlens.shape) != (num_sequences + 1,) or self.cu_seqlens.dtype != torch.int32:
            raise BatchError(
                f"cu_seqlens is {self.cu_seqlens.dtype} {tuple(self.cu_seqlens.shape)} for {num_sequences} sequences",
                why="it must be int32 with one entry more than there are sequences",
            )
        if self.cu_seqlens.is_cpu:
            self._check_boundaries()
        for name, media in self.media.items():
            media.check(name, num_sequences)

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
        with the same dtype and shape (per token, for `token_extras`). Media may be on some only.

        Raises:
            BatchError: trajectories disagree on an extra column, one has no tokens, or images nobody prepared.
        """
        rows = [(trajectory, number) for number, episode in enumerate(episodes) for trajectory in episode.trajectories]
        groups = {name: code for code, name in enumerate(dict.fromkeys(episode.group_id for episode in episodes))}
        trajectories = [trajectory for trajectory, _ in rows]
        _refuse_files(trajectories)
        lengths = torch.tensor([len(t) for t in trajectories], dtype=torch.int64)
        tokens = {
            "input_ids": _cat([t.input_ids for t in trajectories], torch.int64),
            "loss_mask": _cat([t.loss_mask for t in trajectories], torch.bool),
            "logprobs": _cat([t.logprobs for t in trajectories], torch.float32),
            "versions": _cat([t.versions for t in trajectories], torch.int32),
        }
        for name in _common_names([t.token_extras for t in trajectories]):
            tokens[name] = torch.cat(alike(name, [t.token_extras[name] for t in trajectories], from_dim=1))
        sequences = {
            "reward": torch.tensor([t.reward for t in trajectories], dtype=torch.float32),
            "stop_reason": torch.tensor([STOP_CODES.index(t.stop_reason) for t in trajectories], dtype=torch.int8),
            "group": torch.tensor([groups[episodes[number].group_id] for _, number in rows], dtype=torch.int64),
            "episode": torch.tensor([number for _, number in rows], dtype=torch.int64),
        }
        for name in _common_names([t.sequence_extras for t in trajectories]):
            sequences[name] = torch.stack(alike(name, [t.sequence_extras[name] for t in trajectories], from_dim=0))
        return cls.of(tokens, sequences, lengths, pack_media([t.media for t in trajectories]))

    @classmethod
    def of(
        cls,
        tokens: Mapping[str, Tensor],
        sequences: Mapping[str, Tensor],
        lengths: Tensor,
        media: Mapping[str, Media] | None = None,
    ) -> Batch:
        """Build a batch from plain columns and the length of each sequence (int64 [N])."""
        cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        cu_seqlens[1:] = lengths.cumsum(0)
        return cls(
            tokens=_table("token", tokens, int(lengths.sum())),
            sequences=_table("sequence", sequences, len(lengths)),
            cu_seqlens=cu_seqlens,
            media=media or {},
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
        return Batch(tokens=tokens, sequences=self.sequences, cu_seqlens=self.cu_seqlens, media=self.media)

    def with_sequences(self, **columns: Tensor) -> Batch:
        """Return a batch with these sequence columns added or replaced; the tensors are shared, not copied."""
        sequences = _table("sequence", {**_columns(self.sequences), **columns}, self.num_sequences)
        return Batch(tokens=self.tokens, sequences=sequences, cu_seqlens=self.cu_seqlens, media=self.media)

    def select(self, rows: Sequence[int] | Tensor) -> Batch:
        """Return these sequences, by number and in this order, tokens and all; or those where a bool [N] is True."""
        index = torch.as_tensor(rows, device=self.device)
        index = index.nonzero().flatten() if index.dtype == torch.bool else index.to(torch.int64)
        lengths = self.lengths[index]
        token_index = runs(self.cu_seqlens.to(torch.int64)[:-1][index], lengths)
        return Batch.of(
            {name: column[token_index] for name, column in _columns(self.tokens).items()},
            {name: column[index] for name, column in _columns(self.sequences).items()},
            lengths,
            {name: media.select(index) for name, media in self.media.items()},
        )

    def split(self, plan: Sequence[Sequence[int]]) -> list[Batch]:
        """Return one batch per list of sequence numbers. `concat` of them, reordered, is this batch again."""
        return [self.select(rows) for rows in plan]

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """Return all sequences of all batches, in order. Media may be in some only.

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
            concat_media([(batch.lengths, batch.media) for batch in batches]),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on another device."""
        return Batch(
            tokens=self.tokens.to(device),
            sequences=self.sequences.to(device),
            cu_seqlens=self.cu_seqlens.to(device),
            media={name: media.to(device) for name, media in self.media.items()},
        )

    def flat(self) -> dict[str, Tensor]:
        """Return every column under `cu_seqlens` or `<table>/<name>`; tables are tokens, sequences, media, counts.

        Clones of them are what `safetensors.torch.save_file` takes, and `from_flat` reads that back.
        """
        return {
            **{f"tokens/{name}": column for name, column in _columns(self.tokens).items()},
            **{f"sequences/{name}": column for name, column in _columns(self.sequences).items()},
            **{f"media/{name}": media.rows for name, media in self.media.items()},
            **{f"counts/{name}": media.counts for name, media in self.media.items()},
            "cu_seqlens": self.cu_seqlens,
        }

    @classmethod
    def from_flat(cls, columns: Mapping[str, Tensor]) -> Batch:
        """Undo `flat`; the tensors are shared, not copied.

        Raises:
            BatchError: a name `flat` cannot have given, or no `cu_seqlens`.
        """
        tables: dict[str, dict[str, Tensor]] = {name: {} for name in (*_TABLES, "cu_seqlens")}
        for path, column in columns.items():
            table, _, name = path.partition("/")
            if table not in tables or (table == "cu_seqlens") != (name == ""):
                raise BatchError(f"{path!r} names no column", why=f"names are {'/*, '.join(_TABLES)}/* and cu_seqlens")
            tables[table][name] = column
        if "cu_seqlens" not in columns:
            raise BatchError("the columns hold no cu_seqlens", why="it says where each sequence begins")
        if tables["media"].keys() != tables["counts"].keys():
            lone = ", ".join(sorted(tables["media"].keys() ^ tables["counts"].keys()))
            raise BatchError(f"media {lone} come without counts, or counts without rows", why="neither tells the other")
        cu_seqlens = columns["cu_seqlens"]
        return cls(
            tokens=_table("token", tables["tokens"], int(cu_seqlens[-1])),
            sequences=_table("sequence", tables["sequences"], len(cu_seqlens) - 1),
            cu_seqlens=cu_seqlens,
            media={name: Media(rows=rows, counts=tables["counts"][name]) for name, rows in tables["media"].items()},
        )


_TABLES = ("tokens", "sequences", "media", "counts")
"""What names of `Batch.flat` begin with."""


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


def _refuse_files(trajectories: Sequence[Trajectory]) -> None:
    with_files = sum(bool(trajectory.images) for trajectory in trajectories)
    if with_files:
        raise BatchError(
            f"{with_files} of {len(trajectories)} trajectories hold images as files",
            why="a batch holds what the model's processor made of them",
            fix="prepare them with areal_torch.prepare_images first",
        )


def _concat_tables(tables: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    names = set(tables[0])
    for table in tables:
        if set(table) != names:
            raise BatchError(
                f"batches differ in their columns {sorted(set(table) ^ names)}",
                why="a concatenated column needs a value for every row",
            )
    return {name: torch.cat(alike(name, [table[name] for table in tables], from_dim=1)) for name in tables[0]}


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
