"""A shard cut into micro-batches that fit the token budget.

Knows: sequence lengths and the budget, bins of bounded size; rows sorted by length, which packed attention likes.
Does not know: other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError


def check_batch(
    batch: Batch, *, columns: frozenset[str], max_tokens: int, context_length: int, vocab_size: int
) -> None:
    """Refuse a batch the model cannot take, before anything is computed.

    Raises:
        BatchError: a column is missing, a sequence is too long, or a token id is not in the vocabulary.
    """
    missing = columns - {str(name) for name in batch.tokens.keys()}  # noqa: SIM118  TensorDict iterates over rows
    if missing:
        raise BatchError(
            f"the batch lacks the token columns {', '.join(sorted(missing))}",
            why="the objective reads them",
            fix="compute them before train_step; the plan does so for registered algorithms",
        )
    longest = int(batch.lengths.max()) if batch.num_sequences else 0
    limit = min(max_tokens, context_length or max_tokens)
    if longest > limit:
        raise BatchError(
            f"sequence {int(batch.lengths.argmax())} has {longest} tokens, the limit is {limit}",
            why="it must fit into one micro-batch" if limit == max_tokens else "the model's positions end there",
            fix="raise max_tokens_per_microbatch" if limit == max_tokens else "lower the prompt and output budgets",
        )
    ids = batch.tokens["input_ids"]
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise BatchError(
            f"token ids run from {int(ids.min())} to {int(ids.max())}",
            why=f"the model's vocabulary has {vocab_size} entries",
            fix="use the tokenizer of this model",
        )


def cut(batch: Batch, max_tokens: int) -> list[Batch]:
    """Return micro-batches of at most `max_tokens` tokens; every sequence is in exactly one.

    Each carries the token column `row`, int64: where its tokens stood in `batch`.

    Raises:
        BatchError: one sequence exceeds the budget.
    """
    lengths = batch.lengths.tolist()
    numbered = batch.with_tokens(row=torch.arange(batch.num_tokens, device=batch.device))
    ordered = [sorted(part, key=lambda row: (lengths[row], row)) for part in plan_bins(lengths, max_tokens)]
    return numbered.split(ordered)


def plan_bins(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Put each row, the longest first, into the first bin with room for its tokens; open a bin when there is none.

    First-fit-decreasing never uses more than 11/9 of the fewest possible bins plus one (Johnson). The same lengths give
    the same plan in every process: rows ascend within a bin, bins are ordered by their first row.

    Returns:
        Row numbers per bin. No rows, no bins.

    Raises:
        BatchError: one row exceeds the budget.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        size = lengths[row]
        if size > max_tokens:
            raise BatchError(
                f"row {row} has {size} tokens, the budget is {max_tokens}",
                why="a sequence is never cut",
                fix=f"raise max_tokens_per_microbatch to {size} or more, or shorten prompts or max_new_tokens",
            )
        number = next((number for number, free in enumerate(room) if size <= free), len(bins))
        if number == len(bins):
            bins.append([])
            room.append(max_tokens)
        bins[number].append(row)
        room[number] -= size
    return sorted(sorted(rows) for rows in bins)


def placeholder(device: torch.device) -> Batch:
    """Return the smallest batch a model can run: for ranks that must take part but have no data left.

    Its second token is on the mask, so that every parameter has a place in the backward pass.
    """
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    mask = torch.tensor([False, True], device=device)
    return Batch.of({"input_ids": ids, "loss_mask": mask}, {}, torch.tensor([2], device=device))
