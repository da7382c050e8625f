"""The laws of the packed batch: splitting, concatenating, selecting and storing lose nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from areal_core.contract.batch import STOP_CODES, Batch
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.errors import BatchError
from areal_torch.testing.batches import (
    assert_same_batch,
    batches,
    episode_lists,
    make_batch,
    make_episode,
    make_trajectory,
)

INTEGERS = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DTYPES = (*INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@st.composite
def plans(draw: st.DrawFn, num_rows: int) -> list[list[int]]:
    """Draw a plan that uses every row once, with parts of any size, empty ones too."""
    parts = draw(st.integers(1, 4))
    owners = draw(st.lists(st.integers(0, parts - 1), min_size=num_rows, max_size=num_rows))
    order = draw(st.permutations(range(num_rows)))
    return [[row for row in order if owners[row] == part] for part in range(parts)]


@given(batches(), st.data())
def test_split_then_concat_then_reorder_is_the_same_batch(batch: Batch, data: st.DataObject) -> None:
    """Whatever the plan, the parts put back into order are the batch again, every column of it."""
    plan = data.draw(plans(batch.num_sequences))

    joined = Batch.concat(batch.split(plan))

    order = torch.tensor([row for part in plan for row in part], dtype=torch.int64)
    assert_same_batch(batch, joined.select(order.argsort()))


@given(batches(min_groups=1), st.data())
def test_select_takes_exactly_the_named_rows(batch: Batch, data: st.DataObject) -> None:
    """Row k of a selection is the named row: tokens, sequence columns and length, also when named twice."""
    rows = data.draw(st.lists(st.integers(0, batch.num_sequences - 1), max_size=6))

    selected = batch.select(rows)

    assert selected.num_sequences == len(rows)
    for place, row in enumerate(rows):
        old = slice(int(batch.cu_seqlens[row]), int(batch.cu_seqlens[row + 1]))
        new = slice(int(selected.cu_seqlens[place]), int(selected.cu_seqlens[place + 1]))
        for name in batch.tokens.keys():  # noqa: SIM118
            assert torch.equal(batch.tokens[name][old], selected.tokens[name][new]), name
        for name in batch.sequences.keys():  # noqa: SIM118
            assert torch.equal(batch.sequences[name][row], selected.sequences[name][place]), name
    for name, media in batch.media.items():
        shown, kept = (each.rows.split(each.counts.tolist()) for each in (media, selected.media[name]))
        assert all(torch.equal(shown[row], kept[place]) for place, row in enumerate(rows)), name


@given(batches())
def test_a_mask_selects_where_it_is_true(batch: Batch) -> None:
    """A bool mask is not mistaken for row numbers 0 and 1."""
    mask = torch.arange(batch.num_sequences) % 2 == 0

    assert_same_batch(batch.select(range(0, batch.num_sequences, 2)), batch.select(mask))


@given(episode_lists())
def test_pack_keeps_every_token_of_every_trajectory_in_order(episodes: list[Episode]) -> None:
    """The packed columns are the trajectories' columns end to end, and sequence columns line up."""
    trajectories = [t for episode in episodes for t in episode.trajectories]

    batch = Batch.pack(episodes)

    assert [len(t) for t in trajectories] == batch.lengths.tolist()
    for name in ("input_ids", "loss_mask", "logprobs", "versions"):
        expected = [value for t in trajectories for value in getattr(t, name).tolist()]
        assert expected == batch.tokens[name].tolist(), name
    assert [t.reward for t in trajectories] == batch.sequences["reward"].tolist()
    assert [t.stop_reason for t in trajectories] == [STOP_CODES[code] for code in batch.sequences["stop_reason"]]
    owners = [number for number, episode in enumerate(episodes) for _ in episode.trajectories]
    assert owners == batch.sequences["episode"].tolist()


@given(episode_lists(max_groups=4, max_group_size=4))
def test_groups_are_numbered_by_id_not_by_position(episodes: list[Episode]) -> None:
    """Two rows share a group number exactly when their group ids are equal; sizes may differ, order is free."""
    ids = [episode.group_id for episode in episodes for _ in episode.trajectories]

    codes = Batch.pack(episodes).sequences["group"].tolist()

    assert [[a == b for b in ids] for a in ids] == [[a == b for b in codes] for a in codes]
    assert sorted(set(codes)) == list(range(len(set(ids)))), "numbers are dense"


@given(batches())
def test_positions_and_sequence_ids_follow_the_lengths(batch: Batch) -> None:
    """Each token knows its sequence and its place in it."""
    expected = [(row, place) for row, length in enumerate(batch.lengths.tolist()) for place in range(length)]

    assert expected == list(zip(batch.sequence_ids.tolist(), batch.positions.tolist(), strict=True))


@given(batches(), st.integers(0, 10_000))
def test_the_flat_columns_of_a_batch_survive_safetensors_bit_for_bit(batch: Batch, seed: int) -> None:
    """Every dtype, NaN and minus zero, columns of several dimensions, and columns that share memory survive."""
    generator = torch.Generator().manual_seed(seed)
    for number, dtype in enumerate(DTYPES):
        values = torch.randint(0, 2, (batch.num_tokens, 1 + number % 3), generator=generator).to(dtype)
        batch = batch.with_tokens(**{f"extra.{dtype}": values})
        batch = batch.with_sequences(**{f"extra/{dtype}": torch.zeros(batch.num_sequences, 2, dtype=dtype)})
    odd = torch.tensor([float("nan"), -0.0, float("-inf")]).repeat(batch.num_tokens)[: batch.num_tokens]
    batch = batch.with_tokens(odd=odd, alias=batch.tokens["logprobs"], strided=torch.stack([odd, odd], dim=1)[:, 0])
    written = save({name: column.clone() for name, column in batch.flat().items()})

    assert_same_batch(batch, Batch.from_flat(load(written)))


@given(batches())
def test_flat_columns_give_the_batch_back_without_copying(batch: Batch) -> None:
    """from_flat undoes flat and shares the tensors, which is what makes transport cheap."""
    again = Batch.from_flat(batch.flat())

    assert_same_batch(batch, again)
    assert all(column.data_ptr() == again.flat()[name].data_ptr() for name, column in batch.flat().items())


def test_with_tokens_shares_the_other_columns_and_leaves_the_batch_alone() -> None:
    """Adding a column copies nothing and is not seen by the batch it was added to."""
    batch = make_batch()

    more = batch.with_tokens(advantages=torch.zeros(batch.num_tokens))
    other = more.with_sequences(length=batch.lengths)

    assert "tokens/advantages" not in batch.flat()
    assert "sequences/length" not in more.flat()
    assert batch.tokens["input_ids"].data_ptr() == other.tokens["input_ids"].data_ptr()


def test_sequence_columns_are_split_with_their_rows() -> None:
    """A column with one entry per sequence is cut, never replicated into every micro-batch."""
    batch = make_batch([(1, 2), (1, 3), (1, 4), (1, 5)], rewards=[0.0, 1.0, 2.0, 3.0])

    parts = batch.split([[3, 0], [1, 2]])

    assert [part.sequences["reward"].tolist() for part in parts] == [[3.0, 0.0], [1.0, 2.0]]


def test_a_batch_of_nothing_is_a_batch() -> None:
    """No episodes, no rows: an idle rank's shard packs, splits, selects and concatenates."""
    empty = Batch.pack([])

    assert (empty.num_tokens, empty.num_sequences) == (0, 0)
    assert_same_batch(empty, Batch.concat([empty, empty.select([])]))
    assert_same_batch(make_batch(), Batch.concat([make_batch().select([]), make_batch()]))
    assert [] == empty.positions.tolist() == empty.sequence_ids.tolist()


def test_a_sequence_without_tokens_is_refused_by_number() -> None:
    """An empty sequence has no mean and breaks attention kernels; it is named at packing."""
    episodes = [make_episode(), make_episode(make_trajectory(0, 0))]

    with pytest.raises(BatchError, match="sequence 1 of the batch has no tokens"):
        Batch.pack(episodes)


def test_boundaries_that_do_not_fit_the_tokens_are_refused() -> None:
    """cu_seqlens is checked in dtype, size and ends."""
    batch = make_batch()
    for wrong in (batch.cu_seqlens.to(torch.int64), batch.cu_seqlens[:-1], batch.cu_seqlens + 1, batch.cu_seqlens * 2):
        with pytest.raises(BatchError, match="cu_seqlens"):
            Batch(tokens=batch.tokens, sequences=batch.sequences, cu_seqlens=wrong)


def test_a_column_of_the_wrong_length_is_refused_by_name() -> None:
    """One row per token, one row per sequence."""
    batch = make_batch()

    with pytest.raises(BatchError, match=r"token column 'values' has shape \(2,\) for 11 tokens"):
        batch.with_tokens(values=torch.zeros(2))
    with pytest.raises(BatchError, match="sequence column 'score'"):
        batch.with_sequences(score=torch.tensor(1.0))


def test_batches_with_different_columns_are_not_concatenated() -> None:
    """A column of one batch is neither dropped nor promoted to another dtype in silence."""
    batch = make_batch()
    more = batch.with_tokens(values=torch.zeros(batch.num_tokens))
    other = batch.with_tokens(values=torch.zeros(batch.num_tokens, dtype=torch.float64))

    for pair in ([batch, more], [more, batch], [more, other], []):
        with pytest.raises(BatchError):
            Batch.concat(pair)


@pytest.mark.parametrize("kind", ["token_extras", "sequence_extras"])
def test_an_extra_column_must_be_on_every_trajectory_and_alike(kind: str) -> None:
    """A packed column needs a value of one shape for every row."""
    plain = make_trajectory(1, 1)
    with_extra = make_trajectory(1, 1, **{kind: {"image": torch.zeros(2, 3)}})
    wider = make_trajectory(1, 1, **{kind: {"image": torch.zeros(2, 4)}})

    with pytest.raises(BatchError, match="'image' is missing from 1 of 2"):
        Batch.pack([make_episode(with_extra), make_episode(plain)])
    with pytest.raises(BatchError, match="'image' differs"):
        Batch.pack([make_episode(with_extra), make_episode(wider)])


def test_columns_that_are_no_batch_are_refused() -> None:
    """Foreign tensors, and columns without boundaries, give a BatchError that says why."""
    with pytest.raises(BatchError, match="'model/weight' names no column"):
        Batch.from_flat({"model/weight": torch.zeros(1)})
    with pytest.raises(BatchError, match="no cu_seqlens"):
        Batch.from_flat({"tokens/input_ids": torch.zeros(1)})


def test_stop_reasons_are_stored_by_their_place_in_the_tuple() -> None:
    """Truncation is read from the stop reason, never guessed from a width."""
    episodes = [make_episode(make_trajectory(1, 2, stop_reason=reason)) for reason in StopReason]

    codes = Batch.pack(episodes).sequences["stop_reason"]

    assert torch.int8 == codes.dtype
    assert list(StopReason) == [STOP_CODES[code] for code in codes]
