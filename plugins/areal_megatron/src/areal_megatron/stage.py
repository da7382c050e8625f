"""One stage of a model: Megatron's GPTModel run on one packed micro-batch.

Knows: embedding, decoder, heads, how columns align with tokens, entries that only fill the vocabulary up.
Does not know: schedules, losses, or how gradients are added.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from areal_core.contract.train import Head, Output
from areal_megatron.library import tensor_parallel
from areal_megatron.packing import Pass
from areal_megatron.ranks import Ranks
from areal_megatron.rotary import Rotary
from areal_torch.context import ContextRanks
from areal_torch.layout import largest_share, share_of
from areal_torch.logprobs import logprobs_and_entropy
from areal_torch.shape import ModelShape


@frozen(kw_only=True, eq=False)
class ModelStage:
    """Some of the layers; the first embeds, the last judges. Any: megatron is not typed."""

    model: Any
    shape: ModelShape
    rotary: Rotary
    ranks: Ranks
    temperature: float

    def run(self, current: Pass, outputs: frozenset[Output]) -> Tensor:
        """Return hidden states [S / c / t, 1, D] for the next stage, or of the last one columns [k, T].

        Columns are float32, sorted by name, with gradient: 0 at the first token of each sequence; log-probs and
        entropy are 0 off the loss mask too. What a stage is given lies in the model already (`set_input_tensor`).
        """
        hidden = self._embedded(current.input_ids) if self.model.pre_process else None
        hidden = self.model.decoder(
            hidden_states=hidden,
            attention_mask=None,
            rotary_pos_emb=self.rotary.table(current.longest, current.held.device),
            packed_seq_params=current.sequences,
        )
        assert isinstance(hidden, Tensor)
        if not self.model.post_process:
            return hidden
        if self.ranks.degrees["t"] > 1:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return self._columns(hidden.squeeze(1), current, outputs)

    def _embedded(self, input_ids: Tensor) -> Tensor:
        """Embed the tokens this rank's layers see, of which a tensor rank gets its run; padding is not trained."""
        hidden: Tensor = self.model.embedding(input_ids[None], None)
        if self.shape.padding is None:
            return hidden
        is_padding = (input_ids == self.shape.padding).chunk(self.ranks.degrees["t"])[self.ranks.place["t"]]
        return torch.where(is_padding[:, None, None], hidden.detach(), hidden)

    def _columns(self, hidden: Tensor, current: Pass, outputs: frozenset[Output]) -> Tensor:
        batch = current.batch
        rows, at = current.rows()
        if self.shape.head is Head.CAUSAL_LM:
            trained = batch.tokens["loss_mask"][rows]
            rows, at = rows[trained], at[trained]
        before = hidden.index_select(0, at)
        if self.shape.head is Head.VALUE:
            columns = {Output.VALUES: self._values(before)}
        else:
            columns = self._scores(before, batch.tokens["input_ids"][rows], Output.ENTROPY in outputs)
        found = [_spread(columns[name], rows, batch.num_tokens) for name in sorted(outputs)]
        if self.ranks.degrees["c"] > 1:
            context = ContextRanks(self.ranks.context)
            found = [context.total(column) for column in found]
        return torch.stack(found)

    def _values(self, hidden: Tensor) -> Tensor:
        score = self.model.score
        return nn.functional.linear(hidden.float(), score.weight.float(), score.bias.float()).squeeze(-1)

    def _scores(self, hidden: Tensor, targets: Tensor, with_entropy: bool) -> dict[Output, Tensor]:
        is_tied = self.model.share_embeddings_and_output_weights
        weight = self.model.embedding.word_embeddings.weight if is_tied else self.model.output_layer.weight
        vocabulary, ranks = self.shape.vocabulary, self.ranks
        logprobs, entropy = logprobs_and_entropy(
            hidden.to(weight.dtype),
            weight[: len(share_of(vocabulary, ranks.degrees["t"], ranks.place["t"]))],  # the rest is no entry
            None,
            targets,
            self.temperature,
            with_entropy=with_entropy,
            vocabulary=ranks.tensor if ranks.degrees["t"] > 1 else None,
            share=largest_share(vocabulary, ranks.degrees["t"]),
        )
        return {Output.LOGPROBS: logprobs, Output.ENTROPY: entropy}


def _spread(rows: Tensor, index: Tensor, num_tokens: int) -> Tensor:
    return torch.zeros(num_tokens, dtype=torch.float32, device=rows.device).index_copy(0, index, rows)
