"""Per-token columns of a batch, and the limits a batch must keep.

Knows: packed tokens to padded rows and back, alignment, the mask, the temperature, the token budget.
Does not know: losses, ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.train import CANDIDATES, ROUTED_EXPERTS, Head, Output, TrainSpec
from areal_proof.second.train.experts import check_routes
from areal_proof.second.train.network import Network
from areal_proof.second.train.shown import check_shown, shown_of

CHUNK_LOGITS = 1 << 24
"""Logits multiplied at once."""
GIVES = {
    Head.CAUSAL_LM: frozenset({Output.LOGPROBS, Output.ENTROPY, Output.CANDIDATE_LOGPROBS}),
    Head.VALUE: frozenset({Output.VALUES}),
}


@frozen(kw_only=True, eq=False)
class Columns:
    """What a model says about the tokens of a batch."""

    network: Network
    spec: TrainSpec

    def of(self, batch: Batch, outputs: frozenset[Output]) -> dict[str, Tensor]:
        """Return float32 [T] columns with gradient. `batch` is on the model's device, and not empty.

        What is said about token t is read from the state of token t - 1; a first token has nothing before it.
        """
        lengths = batch.lengths.tolist()
        ids = batch.tokens["input_ids"]
        routes = batch.tokens.get(ROUTED_EXPERTS, None)
        padded = pad_sequence(ids.split(lengths), batch_first=True)
        padded_routes = None
        if routes is not None:
            parts = [_of_passes(part) for part in routes.split(lengths)]
            padded_routes = pad_sequence(parts, batch_first=True, padding_value=-1)
        hidden_NLD = self.network.hidden(padded, padded_routes, shown_of(batch, self.network.architecture.vision))
        real_NL = torch.arange(padded.shape[1], device=ids.device) < batch.lengths[:, None]
        before_TD = hidden_NLD[real_NL].roll(1, 0)
        asked = batch.positions > 0
        if self.spec.head is Head.VALUE:
            return {Output.VALUES: _put(asked, self.network.values(before_TD[asked]))}
        asked = asked & batch.tokens["loss_mask"]
        log_p = self.log_p(before_TD[asked])
        columns = {
            Output.LOGPROBS: log_p.gather(1, ids[asked][:, None]).squeeze(1),
            Output.ENTROPY: -(log_p.exp() * log_p).sum(-1),
        }
        found: dict[str, Tensor] = {}
        if Output.CANDIDATE_LOGPROBS in outputs:
            named = batch.tokens[CANDIDATES]
            columns[Output.CANDIDATE_LOGPROBS], ids = self.judged(log_p, named[asked].long())
            found[CANDIDATES] = named.index_put((asked,), ids.to(torch.int32))
        return {**found, **{name: _put(asked, columns[name]) for name in outputs}}

    def log_p(self, hidden_RD: Tensor) -> Tensor:
        """Return log-probabilities [R, V] after hidden states, some rows at a time."""
        rows = max(1, CHUNK_LOGITS // self.network.architecture.vocab)
        parts = [self.network.logits(part) / self.spec.temperature for part in torch.split(hidden_RD, rows)]
        return torch.cat([part.log_softmax(-1) for part in parts])

    def judged(self, log_p: Tensor, named: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probs of candidates, and the candidates: what ranks highest where none is named."""
        ranked = log_p.detach().argsort(-1, descending=True)[:, : named.shape[1]]
        ids = torch.where(named < 0, ranked, named)
        return torch.stack([log_p[torch.arange(len(ids)), column] for column in ids.unbind(1)], 1), ids

    def check(
        self, batch: Batch, outputs: frozenset[Output], needed: frozenset[str] = frozenset(), *, step: bool = False
    ) -> None:
        """Refuse what cannot be computed, before anything is."""
        head, architecture = self.spec.head, self.network.architecture
        if outputs - GIVES[head]:
            raise CapabilityError(
                f"the {head.value} head does not give {', '.join(sorted(outputs - GIVES[head]))}",
                why=f"it gives {', '.join(sorted(GIVES[head]))}",
                fix="ask the role with the other head",
            )
        held: Mapping[str, Tensor] = dict(batch.tokens.items())
        if needed - set(held):
            raise BatchError(
                f"the batch has no column {', '.join(sorted(needed - set(held)))}",
                why="the objective reads it",
                fix="compute it before the step",
            )
        budget, context = self.spec.max_tokens_per_microbatch, architecture.context
        limit = min(budget, context) if context else budget
        if batch.num_sequences and int(batch.lengths.max()) > limit:
            raise BatchError(
                f"a sequence has {int(batch.lengths.max())} tokens, at most {limit} are taken",
                why="it fits no micro-batch" if limit == budget else "the model has no more positions",
                fix="raise max_tokens_per_microbatch" if limit == budget else "lower the token budgets",
            )
        ids = held["input_ids"]
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < architecture.vocab):
            raise BatchError(
                f"token ids lie between {int(ids.min())} and {int(ids.max())}",
                why=f"the vocabulary has {architecture.vocab} entries",
                fix="take the tokenizer of this model",
            )
        if Output.CANDIDATE_LOGPROBS in outputs:
            check_named(batch, architecture.vocab, every=step)
        check_shown(batch, architecture.vision)
        if ROUTED_EXPERTS in held:
            layers = len(architecture.expert_layers)
            check_routes(held[ROUTED_EXPERTS], layers, architecture.num_experts, architecture.experts_per_token)


def cut(batch: Batch, max_tokens: int) -> list[list[int]]:
    """Return the sequences of each micro-batch: in order, as many as fit."""
    parts: list[list[int]] = []
    room = 0
    for row, length in enumerate(batch.lengths.tolist()):
        if length > room:
            parts.append([])
            room = max_tokens
        parts[-1].append(row)
        room -= length
    return parts


def _of_passes(rows: Tensor) -> Tensor:
    """Return the routes of the pass over each token: row t is of the pass that token t was drawn from, over t - 1."""
    return torch.cat([rows[1:], torch.full_like(rows[:1], -1)])


def check_named(batch: Batch, vocab: int, *, every: bool) -> None:
    """Refuse candidates that are no tokens; with `every` also rows that name none."""
    column = batch.tokens.get(CANDIDATES, None)
    if column is None or column.dtype is not torch.int32 or column.ndim != 2 or not 0 < column.shape[1] <= vocab:
        raise BatchError("no candidates that could be judged", why="they are int32 [T, K]", fix="add the column")
    rows = column[batch.tokens["loss_mask"] & (batch.positions > 0)]
    whole = ((rows >= 0) & (rows < vocab)).all(1) | ((rows == -1).all(1) & (not every))
    if not bool(whole.all()):
        odd = rows[~whole][0].tolist()
        raise BatchError(f"candidates {odd[:8]}", why=f"each is from 0 to {vocab - 1}", fix="name tokens")


def _put(where: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(*where.shape, *values.shape[1:], device=values.device).index_put((where,), values.float())
