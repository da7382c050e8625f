"""A transformers model as the engines see it: packed tokens in, per-token columns out.

Knows: backbone, head, and how columns align with tokens.
Does not know: micro-batches, losses, or how parameters are sharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from areal_core.contract.errors import CapabilityError
from areal_core.contract.train import Head, Output
from areal_core.data.batch import Batch
from areal_core.training.attention import Packing
from areal_core.training.logprobs import logprobs_and_entropy

HEAD_OUTPUTS: Mapping[Head, frozenset[Output]] = {
    Head.CAUSAL_LM: frozenset({Output.LOGPROBS, Output.ENTROPY}),
    Head.VALUE: frozenset({Output.VALUES}),
}


class PackedModel(nn.Module):
    """Backbone and head in one forward pass, so that a sharding wrapper sees every use of a parameter."""

    def __init__(
        self, hf: Any, head: Head, *, temperature: float = 1.0, autocast: torch.dtype | None = None
    ) -> None:  # Any: transformers is not typed here
        """Wrap `hf`, a model from `areal_core.training.hf`.

        Args:
            autocast: run matrix products in this dtype although the parameters are float32;
                None leaves dtypes to the parameters.
        """
        super().__init__()
        self.hf = hf
        self.head = head
        self.divisor = temperature * _logit_divisor(hf.config)
        self.autocast = autocast

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> dict[str, Tensor]:
        """Compute columns for the tokens of `batch`, which is on the model's device and not empty.

        Returns:
            float32 [T] per output, with gradient; 0 at the first token of each sequence. Log-probs
            and entropy are 0 off the loss mask too: a prompt's logits cost most and train nothing.
        """
        packing = Packing.of(batch)
        input_ids = batch.tokens["input_ids"]
        with torch.autocast(input_ids.device.type, self.autocast, enabled=self.autocast is not None):
            hidden = self.hf.base_model(
                input_ids=input_ids[None],
                position_ids=packing.positions[None],
                attention_mask=None,
                use_cache=False,
                packing=packing,
            ).last_hidden_state[0]
        rows = packing.predicted
        if self.head is Head.VALUE:
            columns = {Output.VALUES: self._values(hidden.index_select(0, rows - 1))}
        else:
            rows = rows[batch.tokens["loss_mask"][rows]]
            columns = self._scores(hidden.index_select(0, rows - 1), input_ids[rows], Output.ENTROPY in outputs)
        return {name: _spread(columns[name], rows, len(input_ids)) for name in outputs}

    def _values(self, hidden: Tensor) -> Tensor:
        score = self.hf.score
        bias = None if score.bias is None else score.bias.float()
        return nn.functional.linear(hidden.float(), score.weight.float(), bias).squeeze(-1)

    def _scores(self, hidden: Tensor, targets: Tensor, with_entropy: bool) -> dict[Output, Tensor]:
        head = self.hf.get_output_embeddings()
        dtype = self.autocast or head.weight.dtype
        bias = None if head.bias is None else head.bias.to(dtype)
        logprobs, entropy = logprobs_and_entropy(
            hidden.to(dtype), head.weight.to(dtype), bias, targets, self.divisor, with_entropy=with_entropy
        )
        return {Output.LOGPROBS: logprobs, Output.ENTROPY: entropy}


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


def _spread(rows: Tensor, index: Tensor, num_tokens: int) -> Tensor:
    return torch.zeros(num_tokens, dtype=torch.float32, device=rows.device).index_copy(0, index, rows)


def _logit_divisor(config: Any) -> float:
    """Return what some families divide their logits by (Granite divides, Cohere multiplies)."""
    return float(getattr(config, "logits_scaling", None) or 1.0) / float(getattr(config, "logit_scale", None) or 1.0)
