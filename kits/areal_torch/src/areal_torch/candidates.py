"""Claim `candidates`: log-probs of tokens that were not taken, given by name or by rank.

Knows: the column `candidates`, what may stand in it, and that rows of -1 ask for the most probable tokens.
Does not know: hidden states or heads (`logprobs`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.train import CANDIDATES, Output


@frozen(kw_only=True)
class Asked:
    """Which tokens some rows ask about, int64 [R, K]; `any_free` if a row of the whole batch is -1."""

    ids: Tensor
    any_free: bool

    def filled(self, find: Callable[[int], Tensor]) -> Tensor:
        """Return the tokens, the most probable ones in rows of -1; `find` is given K and returns all rows of them."""
        return torch.where(self.ids < 0, find(self.ids.shape[1]), self.ids) if self.any_free else self.ids


def check_candidates(batch: Batch, claimed: bool, vocab_size: int, outputs: frozenset[Output], *, given: bool) -> None:
    """Refuse candidates that the model cannot judge, before anything is computed.

    Args:
        claimed: whether the engine claims `candidates`.
        given: whether every row on the mask must name its candidates, as a step needs it.

    Raises:
        CapabilityError: they are asked for and not claimed.
        BatchError: the column is missing, of another shape or dtype, or names what is no token.
    """
    if Output.CANDIDATE_LOGPROBS not in outputs:
        return
    if not claimed:
        raise CapabilityError(
            f"this engine does not compute {Output.CANDIDATE_LOGPROBS}",
            why="it does not claim candidates",
            fix="use an engine that does: areal backends --role train",
        )
    candidates = batch.tokens.get(CANDIDATES)
    if candidates is None or candidates.ndim != 2 or candidates.dtype != torch.int32:
        found = "none" if candidates is None else f"{candidates.dtype} {tuple(candidates.shape)}"
        raise BatchError(
            f"the token column {CANDIDATES!r} is {found}",
            why=f"{Output.CANDIDATE_LOGPROBS} are those of the tokens that it names",
            fix="give int32 [T, K], in rows of -1 for the K most probable tokens",
        )
    if not 1 <= candidates.shape[1] <= vocab_size:
        raise BatchError(
            f"{candidates.shape[1]} candidates are asked for at each token",
            why=f"the model's vocabulary has {vocab_size} entries",
            fix=f"ask for 1 to {vocab_size}",
        )
    asked = candidates[_judged(batch)]
    free = asked < 0
    unfit = {
        f"names a token that is not in 0 to {vocab_size - 1}": ((asked < -1) | (asked >= vocab_size)).any(-1),
        "is -1 in part": free.any(-1) != free.all(-1),
        "is -1": free.any(-1) & given,
    }
    for what, rows in unfit.items():
        if bool(rows.any()):
            row = int(rows.nonzero()[0])
            raise BatchError(
                f"{CANDIDATES} {what}: {asked[row].tolist()[:8]} at token {int(_judged(batch).nonzero()[row])}",
                why="a row names K tokens; in a forward pass one of -1 asks for the K most probable ones",
                fix="give the tokens" if given else "give K tokens, or -1 throughout",
            )


def asked_of(batch: Batch, rows: Tensor) -> Asked:
    """Return the candidates of these tokens; a batch that stands in for none names any."""
    candidates = batch.tokens.get(CANDIDATES)
    if candidates is None:
        return Asked(ids=rows.new_zeros(len(rows), 1), any_free=False)
    any_free = bool((candidates[_judged(batch)] < 0).any())
    return Asked(ids=candidates[rows].to(torch.int64), any_free=any_free)


def _judged(batch: Batch) -> Tensor:
    """Return which tokens are judged, bool [T]: those on the mask but the first of a sequence."""
    judged: Tensor = batch.tokens["loss_mask"] & (batch.positions > 0)
    return judged
