"""A shard cut into micro-batches that fit the token budget.

Knows: sequence lengths and the budget; rows sorted by length, which packed attention likes.
Does not know: other ranks.
"""

from __future__ import annotations

import torch

from areal_core.contract.balance import microbatches
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
    """
    lengths = batch.lengths.tolist()
    plan = microbatches(lengths, max_tokens)
    numbered = batch.with_tokens(row=torch.arange(batch.num_tokens, device=batch.device))
    ordered = [sorted(part, key=lambda row: (lengths[row], row)) for part in plan]
    return numbered.split(ordered)


def placeholder(device: torch.device) -> Batch:
    """Return the smallest batch a model can run: for ranks that must take part but have no data left.

    Its second token is on the mask, so that every parameter has a place in the backward pass.
    """
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    mask = torch.tensor([False, True], device=device)
    return Batch.of({"input_ids": ids, "loss_mask": mask}, {}, torch.tensor([2], device=device))
