"""The stages the pipeline cases cut a model into, and what one process computes with all of them.

Knows: a small model of attention and linear layers over packed tokens, a loss, gradients to compare with.
Does not know: ranks or schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output
from areal_torch.attention import Packing, attend
from areal_torch.logprobs import logprobs_and_entropy
from areal_torch.testing.batches import VOCAB_SIZE, make_batch

HIDDEN, HEADS, LAYERS = 16, 2, 8
CPU = torch.device("cpu")
OUTPUTS = frozenset({Output.LOGPROBS, Output.ENTROPY})
MICROBATCHES = [[(2, 3), (1, 5)], [(1, 1)], [(4, 9)], [(3, 1), (2, 2), (5, 7)], [(2, 12)]]
"""Of 11, 2, 13, 20 and 14 tokens: none fills another."""


class Block(nn.Module):
    """Attention and two linear layers over packed tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.Tanh(), nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        q, k, v = self.qkv(self.norm(hidden)).unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        hidden = hidden + self.out(attend(q, k, v, packing).flatten(1))
        return hidden + self.mlp(hidden)


class Part(nn.Module):
    """Stage `number` of `count`: some blocks, the embedding at one end, norm and head at the other."""

    def __init__(self, number: int, count: int, *, recomputed: bool = False) -> None:
        super().__init__()
        first, last = (LAYERS * number) // count, (LAYERS * (number + 1)) // count
        self.recomputed = recomputed
        self.embedding = nn.Embedding(VOCAB_SIZE, HIDDEN) if number == 0 else None
        self.blocks = nn.ModuleDict({str(layer): Block() for layer in range(first, last)})
        self.norm = nn.LayerNorm(HIDDEN) if number == count - 1 else None
        self.head = nn.Linear(HIDDEN, VOCAB_SIZE, bias=False) if number == count - 1 else None

    def forward(
        self, inputs: Tensor, *, packing: Packing, batch: Batch, outputs: frozenset[Output]
    ) -> Tensor | Mapping[str, Tensor]:
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        for block in self.blocks.values():
            if self.recomputed:
                hidden = checkpoint(block, hidden, packing, use_reentrant=False)
            else:
                hidden = block(hidden, packing)
        if self.head is None or self.norm is None:
            return hidden[None][0]  # a view, as a model with a batch dimension returns it
        return self.columns(self.norm(hidden), packing, batch)

    def columns(self, hidden: Tensor, packing: Packing, batch: Batch) -> Mapping[str, Tensor]:
        assert self.head is not None
        rows, part = packing.predicted, packing.part
        rows = rows[batch.tokens["loss_mask"][rows]]
        rows = rows[(rows > part.start) & (rows <= part.stop)]
        targets = batch.tokens["input_ids"][rows]
        found = logprobs_and_entropy(hidden[rows - 1 - part.start], self.head.weight, None, targets, 1.0)
        zeros = torch.zeros(batch.num_tokens)
        columns = [zeros.index_copy(0, rows, column) for column in found]
        if packing.context is not None:
            columns = [packing.context.total(column) for column in columns]
        return dict(zip([Output.LOGPROBS, Output.ENTROPY], columns, strict=True))


def build(numbers: Sequence[int], count: int, *, tied: bool = False, recomputed: bool = False) -> list[Part]:
    """Return stages with the weights the whole model has there, whatever it is cut into."""
    whole = Part(0, 1)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    weights = whole.state_dict()
    if tied:
        weights["head.weight"] = weights["embedding.weight"]
    stages = [Part(number, count, recomputed=recomputed) for number in numbers]
    for stage in stages:
        stage.load_state_dict({name: weights[name] for name in stage.state_dict()})
    return stages


def microbatches(count: int, shard: int = 0) -> list[Batch]:
    """Return this many micro-batches with a weight for each token, of one shard of the data."""
    parts = [make_batch(MICROBATCHES[(number + 2 * shard) % len(MICROBATCHES)]) for number in range(count)]
    generator = torch.Generator().manual_seed(11 + shard)
    return [part.with_tokens(weight=torch.randn(part.num_tokens, generator=generator)) for part in parts]


class Score:
    """A share of the loss that depends on every column, and what it was asked for."""

    def __init__(self, parts: Sequence[Batch], raise_at: int = -1) -> None:
        self.parts, self.raise_at = parts, raise_at
        self.asked: list[int] = []
        self.total = 0.0

    def __call__(self, number: int, columns: Mapping[str, Tensor]) -> Tensor:
        self.asked.append(number)
        if number == self.raise_at:
            raise ValueError(f"micro-batch {number} is not to be scored")
        weight = self.parts[number].tokens["weight"]
        loss = (weight * columns[Output.LOGPROBS]).sum() + 0.1 * columns[Output.ENTROPY].square().sum()
        self.total += float(loss.detach())
        return loss


Gradients = dict[str, Tensor]


def oracle(shards: Sequence[Sequence[Batch]], *, tied: bool = False) -> tuple[Gradients, list[Mapping[str, Tensor]]]:
    """Return the gradient of all micro-batches of all shards, and the columns of the first shard."""
    (model,) = build([0], 1, tied=tied)
    kept = []
    for parts in shards:
        score = Score(parts)
        for number, part in enumerate(parts):
            columns = model(part.tokens["input_ids"], packing=Packing.of(part), batch=part, outputs=OUTPUTS)
            score(number, columns).backward()
            kept.append({name: column.detach() for name, column in columns.items()})
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if tied:
        gradients["embedding.weight"] = gradients["head.weight"] = (
            gradients["embedding.weight"] + gradients["head.weight"]
        )
    return gradients, kept[: len(shards[0])]


def distance(stages: Sequence[nn.Module], expected: Gradients, factor: float = 1.0) -> float:
    """Return how far the gradients are off, relative to the expected ones; infinite where there is none."""
    worst = 0.0
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.grad is None:
                return float("inf")
            found = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            reference = expected[name] * factor
            worst = max(worst, float((found - reference).norm() / reference.norm()))
    return worst
