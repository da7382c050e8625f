"""A transformers model as the engines see it: packed tokens in, per-token columns out.

Knows: backbone, head, and how columns align with tokens.
Does not know: micro-batches, losses, or how parameters are sharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError
from areal_core.contract.train import CANDIDATES, Head, Output
from areal_torch.attention import Packing
from areal_torch.candidates import Asked, asked_of
from areal_torch.context import ContextRanks
from areal_torch.experts import routes_of
from areal_torch.images import Vision, VisionTower, seen_inputs
from areal_torch.layout import largest_share
from areal_torch.logprobs import logprobs_and_entropy, most_probable

HEAD_OUTPUTS: Mapping[Head, frozenset[Output]] = {
    Head.CAUSAL_LM: frozenset({Output.LOGPROBS, Output.ENTROPY, Output.CANDIDATE_LOGPROBS}),
    Head.VALUE: frozenset({Output.VALUES}),
}


class PackedModel(nn.Module):
    """Backbone and head in one forward pass, so that a sharding wrapper sees every use of a parameter."""

    def __init__(
        self,
        hf: Any,  # Any: transformers is not typed here
        head: Head,
        *,
        temperature: float = 1.0,
        autocast: torch.dtype | None = None,
        vocabulary: dist.ProcessGroup | None = None,
        context: ContextRanks | None = None,
    ) -> None:
        """Wrap `hf`, a model from `areal_torch.hf`.

        Args:
            autocast: run matrix products in this dtype although the parameters are float32;
                None leaves dtypes to the parameters.
            vocabulary: the ranks that share the head's rows, as DTensors cut along their first dimension.
            context: the ranks that share every sequence.
        """
        super().__init__()
        self.hf = hf
        self.head = head
        self.divisor = temperature * _logit_divisor(hf.config)
        self.autocast = autocast
        self.vocabulary = vocabulary
        self.context = context
        vision = Vision.of(hf.config)
        self.vision_tower = VisionTower(hf.base_model, vision) if vision else None

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> dict[str, Tensor]:
        """Compute columns for the tokens of `batch`, which is on the model's device and not empty.

        Returns:
            float32 [T] per output, with gradient; 0 at the first token of each sequence. Log-probs
            and entropy are 0 off the loss mask too: a prompt's logits cost most and train nothing.
            Those of candidates are [T, K]; with rows of -1 also `candidates`, -1 where none were looked for.
        """
        packing = Packing.of(batch, self.context)
        input_ids, part = batch.tokens["input_ids"], packing.part
        with torch.autocast(input_ids.device.type, self.autocast, enabled=self.autocast is not None):
            hidden = self._layers(
                **seen_inputs(self.vision_tower, batch, packing),
                attention_mask=None,
                use_cache=False,
                packing=packing,
                **routes_of(batch, packing),
            ).last_hidden_state[0]
        rows = packing.predicted
        if self.head is Head.CAUSAL_LM:
            rows = rows[batch.tokens["loss_mask"][rows]]
        if self.context is not None:
            rows = rows[(rows > part.start) & (rows <= part.stop)]
        before = hidden.index_select(0, rows - 1 - part.start)
        columns: dict[str, Tensor]
        if self.head is Head.VALUE:
            columns = {Output.VALUES: self._values(before)}
        else:
            asked = asked_of(batch, rows) if Output.CANDIDATE_LOGPROBS in outputs else None
            columns = self._scores(before, input_ids[rows], asked, Output.ENTROPY in outputs)
        names = sorted(outputs | (columns.keys() & {CANDIDATES}))
        found: dict[str, Tensor] = {name: _spread(columns[name], rows, len(input_ids)) for name in names}
        if self.context is not None:  # collectives, in one order on all ranks: a set has another in every process
            found = {name: self.context.total(column) for name, column in found.items()}
        return {name: column - 1 if name == CANDIDATES else column for name, column in found.items()}

    @property
    def _layers(self) -> Any:  # Any: as `hf`
        base = self.hf.base_model
        return base if self.vision_tower is None else base.language_model

    def _values(self, hidden: Tensor) -> Tensor:
        score = self.hf.score
        bias = None if score.bias is None else _held(score.bias).float()
        return nn.functional.linear(hidden.float(), _held(score.weight).float(), bias).squeeze(-1)

    def _scores(self, hidden: Tensor, targets: Tensor, asked: Asked | None, with_entropy: bool) -> dict[str, Tensor]:
        embeddings = self.hf.get_output_embeddings()
        dtype = self.autocast or embeddings.weight.dtype
        bias = None if embeddings.bias is None else _held(embeddings.bias).to(dtype)
        head = hidden.to(dtype), _held(embeddings.weight).to(dtype), bias
        size = 0 if self.vocabulary is None else largest_share(embeddings.weight.shape[0], self.vocabulary.size())
        judge = partial(logprobs_and_entropy, with_entropy=with_entropy, vocabulary=self.vocabulary, share=size)
        if asked is None:
            logprobs, entropy = judge(*head, targets, self.divisor)
            return {Output.LOGPROBS: logprobs, Output.ENTROPY: entropy}
        ids = asked.filled(partial(most_probable, *head, vocabulary=self.vocabulary, share=size))
        every, entropy = judge(*head, torch.cat([targets[:, None], ids], 1), self.divisor)
        columns: dict[str, Tensor] = {Output.LOGPROBS: every[:, 0], Output.CANDIDATE_LOGPROBS: every[:, 1:]}
        found = {CANDIDATES: (ids + 1).to(torch.int32)} if asked.any_free else {}
        return {**columns, Output.ENTROPY: entropy, **found}


def check_outputs(head: Head, outputs: frozenset[Output]) -> None:
    """Refuse columns that a model with this head cannot give.

    Raises:
        CapabilityError: values of a language model, or log-probs of a value model.
    """
    wrong = outputs - HEAD_OUTPUTS[head]
    if wrong:
        raise CapabilityError(
            f"a model with the {head.value!r} head cannot give {', '.join(sorted(wrong))}",
            why=f"it gives {', '.join(sorted(HEAD_OUTPUTS[head]))}",
            fix="ask the role that has the right head: log-probs of the actor, values of the critic",
        )


def _held(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter that tensor ranks may share, with gradient."""
    if not isinstance(parameter, DTensor):
        return parameter
    part: Tensor = parameter.to_local(grad_placements=parameter.placements)
    return part


def _spread(rows: Tensor, index: Tensor, num_tokens: int) -> Tensor:
    return rows.new_zeros(num_tokens, *rows.shape[1:]).index_copy(0, index, rows)


def _logit_divisor(config: Any) -> float:
    """Return what some families divide their logits by (Granite divides, Cohere multiplies)."""
    return float(getattr(config, "logits_scaling", None) or 1.0) / float(getattr(config, "logit_scale", None) or 1.0)
