"""One decoder for every family, as a chain of stages: each has some of the layers; the first embeds, the last judges.

Knows: blocks, embedding, final norm, heads, how columns align with tokens.
Does not know: micro-batches, losses, or how parameters are sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from areal_archon.checkpointing import Contexts
from areal_archon.expert import ExpertRanks
from areal_archon.models.layers import Attention, FeedForward, Norm, Work
from areal_archon.models.mixture import Mixture
from areal_archon.models.rotary import Rotary
from areal_archon.tensor import TensorRanks
from areal_core.contract.batch import Batch
from areal_core.contract.train import Head, Output
from areal_torch.attention import Packing
from areal_torch.context import ContextRanks
from areal_torch.experts import KEYWORD, routes_of
from areal_torch.layout import largest_share
from areal_torch.logprobs import logprobs_and_entropy
from areal_torch.shape import ModelShape

Columns = dict[str, Tensor]
Run = Callable[[Tensor, Work], Tensor]
"""How a block computes: once, or again in the backward pass, or compiled."""


@frozen(kw_only=True, eq=False)
class Setting:
    """With whom a model's layers are shared, and what its angles and logits are. The same for every stage."""

    rotary: Rotary
    tensor: TensorRanks = TensorRanks()
    experts: ExpertRanks = ExpertRanks()
    context: ContextRanks | None = None
    temperature: float = 1.0


class Block(nn.Module):
    """One layer. `recompute` makes the backward pass compute it again, keeping only its input or what `keep` keeps."""

    def __init__(self, shape: ModelShape, setting: Setting, number: int) -> None:
        super().__init__()
        self.tensor = setting.tensor
        self.attention_norm = Norm(shape.hidden, shape.norm_eps)
        self.attention = Attention(shape, setting.tensor)
        self.feed_forward_norm = Norm(shape.hidden, shape.norm_eps)
        self.feed_forward: FeedForward | Mixture
        if number in shape.mixtures:
            place = sorted(shape.mixtures).index(number)
            self.feed_forward = Mixture(shape, setting.tensor, setting.experts, place)
        else:
            self.feed_forward = FeedForward(shape, setting.tensor)
        self._run: Run = self._compute

    def forward(self, x_TD: Tensor, work: Work) -> Tensor:
        """Return hidden states, as many as came."""
        return self._run(x_TD, work)

    def recompute(self, keep: Callable[[], Contexts] | None = None) -> None:
        """Compute the block again in the backward pass."""
        options: dict[str, Any] = {} if keep is None else {"context_fn": keep}  # Any: keywords of checkpoint
        self._run = partial(checkpoint, self._run, use_reentrant=False, preserve_rng_state=False, **options)

    def translate(self, backend: str) -> None:
        """Compile what the block computes, for any number of tokens at once; hooks of the block stay outside."""
        self._run = torch.compile(self._run, backend=backend, dynamic=True)

    def _compute(self, x: Tensor, work: Work) -> Tensor:
        x = x + self.attention(self._normalized(x, self.attention_norm), work)
        added: Tensor = self.feed_forward(self._normalized(x, self.feed_forward_norm), work)
        return x + added

    def _normalized(self, x: Tensor, norm: Norm) -> Tensor:
        return norm.normalized(x, self.tensor.between(norm.weight))


class Decoder(nn.Module):
    """The layers of one stage. Alone, with first and last, it is the whole model."""

    def __init__(
        self,
        shape: ModelShape,
        setting: Setting,
        *,
        layers: range | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """Build the layers numbered `layers`, all if None; parameters are named by the layer's own number.

        A last stage that is not the first has a head of its own also where the embedding is tied: a second copy.
        """
        super().__init__()
        self.shape, self.setting, self.first, self.last = shape, setting, first, last
        vocabulary = len(setting.tensor.share(shape.vocabulary))
        if first:
            self.embedding = nn.Embedding(vocabulary, shape.hidden)
        numbers = range(shape.layers) if layers is None else layers
        self.blocks = nn.ModuleDict({str(number): Block(shape, setting, number) for number in numbers})
        if last:
            self.norm = Norm(shape.hidden, shape.norm_eps)
            if shape.head is Head.VALUE:
                self.score = nn.Linear(shape.hidden, 1)
            elif not (first and shape.tied):
                self.head = nn.Linear(shape.hidden, vocabulary, bias=False)

    def forward(
        self, inputs: Tensor, *, packing: Packing, batch: Batch, outputs: frozenset[Output]
    ) -> Tensor | Columns:
        """Run the stage for the tokens of `batch`, which is on the model's device and not empty.

        Args:
            inputs: of the tokens `packing.part`, ids int64 [S] for the first stage, what the stage before returned
                [S, D] for the others.

        Returns:
            Hidden states for the stage after; of the last stage a float32 [T] per output, with gradient. A column is
            0 at the first token of each sequence; log-probs and entropy are 0 off the loss mask too.
        """
        tensor, num_tokens = self.setting.tensor, inputs.shape[0]
        hidden = self._embedded(inputs) if self.first else tensor.run(inputs)
        cos, sin = self.setting.rotary.angles(packing.positions[packing.part], hidden.dtype)
        work = Work(packing, cos, sin, routes_of(batch, packing).get(KEYWORD))
        for block in self.blocks.values():
            hidden = block(hidden, work)
        if self.last:
            hidden = self.norm.normalized(hidden, tensor.between(self.norm.weight))
        hidden = tensor.whole(hidden, num_tokens)
        return self._columns(hidden, batch, packing, outputs) if self.last else hidden

    def _embedded(self, input_ids: Tensor) -> Tensor:
        """Look up this rank's rows; tokens of other ranks' rows are zero here; the row of padding is not trained."""
        tensor, weight, padding = self.setting.tensor, self.embedding.weight, self.shape.padding
        share = tensor.share(self.shape.vocabulary)
        own = input_ids - share.start
        is_own = (own >= 0) & (own < weight.shape[0])
        own_padding = padding - share.start if padding is not None and padding in share else None
        return tensor.leave(embedding(own * is_own, weight, own_padding) * is_own[:, None])

    def _columns(self, hidden: Tensor, batch: Batch, packing: Packing, outputs: frozenset[Output]) -> Columns:
        context, part = self.setting.context, packing.part
        rows = packing.predicted
        if self.shape.head is Head.CAUSAL_LM:
            rows = rows[batch.tokens["loss_mask"][rows]]
        if context is not None:
            rows = rows[(rows > part.start) & (rows <= part.stop)]
        before = hidden.index_select(0, rows - 1 - part.start)
        if self.shape.head is Head.VALUE:
            columns = {Output.VALUES: self._values(before)}
        else:
            columns = self._scores(before, batch.tokens["input_ids"][rows], Output.ENTROPY in outputs)
        found: Columns = {name: _spread(columns[name], rows, batch.num_tokens) for name in sorted(outputs)}
        if context is not None:  # collectives, in one order on all ranks: a set has another in every process
            found = {name: context.total(column) for name, column in found.items()}
        return found

    def _values(self, hidden: Tensor) -> Tensor:
        score = self.score
        return nn.functional.linear(hidden.float(), score.weight.float(), score.bias.float()).squeeze(-1)

    def _scores(self, hidden: Tensor, targets: Tensor, with_entropy: bool) -> dict[Output, Tensor]:
        weight = self.embedding.weight if self.first and self.shape.tied else self.head.weight
        logprobs, entropy = logprobs_and_entropy(
            hidden.to(weight.dtype),
            weight,
            None,
            targets,
            self.setting.temperature,
            with_entropy=with_entropy,
            vocabulary=self.setting.tensor.group,
            share=largest_share(self.shape.vocabulary, self.setting.tensor.size),
        )
        return {Output.LOGPROBS: logprobs, Output.ENTROPY: entropy}


def _spread(rows: Tensor, index: Tensor, num_tokens: int) -> Tensor:
    return torch.zeros(num_tokens, dtype=torch.float32, device=rows.device).index_copy(0, index, rows)
