"""Cutting a shard, and the checks before it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_torch.microbatches import check_batch, cut
from areal_torch.testing.batches import assert_same_batch, make_batch


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(9, 30))
def test_every_token_is_in_exactly_one_microbatch(lengths: list[int], max_tokens: int) -> None:
    """The column `row` brings every token back to its place; budgets hold; lengths ascend in each."""
    total = sum(lengths)
    batch = Batch.of({"input_ids": torch.arange(total)}, {}, torch.tensor(lengths, dtype=torch.int64))

    parts = cut(batch, max_tokens)

    rows = torch.cat([part.tokens["row"] for part in parts]) if parts else torch.zeros(0, dtype=torch.int64)
    assert sorted(rows.tolist()) == list(range(total))
    for part in parts:
        assert 0 < part.num_tokens <= max_tokens
        assert torch.equal(part.tokens["input_ids"], part.tokens["row"])
        assert part.lengths.tolist() == sorted(part.lengths.tolist())


def test_cutting_keeps_the_columns_of_each_sequence() -> None:
    """A sequence is the same before and after."""
    batch = make_batch([(2, 3), (1, 5), (2, 3)])

    parts = cut(batch, 6)

    for part in parts:
        for row in range(part.num_sequences):
            token = int(part.tokens["row"][int(part.cu_seqlens[row])])
            source = batch.select([int(batch.sequence_ids[token])])
            found = part.select([row])
            plain = Batch.of(
                {name: found.tokens[name] for name in source.tokens.keys()},  # noqa: SIM118
                dict(found.sequences.items()),
                found.lengths,
            )
            assert_same_batch(source, plain)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (make_batch([(1, 2)]), "lacks the token columns advantages"),
        (
            make_batch([(1, 2), (2, 9)]).with_tokens(advantages=torch.zeros(14)),
            "sequence 1 has 11 tokens, the limit is 10",
        ),
        (
            make_batch([(1, 2)]).with_tokens(advantages=torch.zeros(3), input_ids=torch.tensor([1, 64, 2])),
            "token ids run from 1 to 64",
        ),
        (
            make_batch([(1, 2)]).with_tokens(advantages=torch.zeros(3), input_ids=torch.tensor([1, -1, 2])),
            "token ids run from -1 to 2",
        ),
    ],
)
def test_unfit_batches_are_refused(batch: Batch, says: str) -> None:
    """Before anything is computed: a missing column, a long sequence, a foreign token."""
    with pytest.raises(BatchError, match=says):
        check_batch(batch, columns=frozenset({"advantages"}), max_tokens=10, context_length=100, vocab_size=64)


def test_the_context_length_limits_sequences_too() -> None:
    """The error says which of the two limits it was."""
    with pytest.raises(BatchError, match="positions end there"):
        check_batch(make_batch([(2, 9)]), columns=frozenset(), max_tokens=100, context_length=10, vocab_size=64)
