"""Mixture of experts in place of a feed-forward layer: a router, and experts that expert ranks may share.

Knows: top-k routing as Qwen3-MoE does it, the order of rows, grouped matrix products.
Does not know: how rows travel (`areal_archon.expert`).

Legend: T tokens, k experts a token, E experts in all, L of this rank, D hidden, I between (this rank's part).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm, linear, silu

from areal_archon.expert import ExpertRanks
from areal_archon.models.layers import Work
from areal_archon.tensor import TensorRanks
from areal_torch.shape import ModelShape


class Experts(nn.Module):
    """SwiGLU experts, one matrix each in a stack. A sharding unit of its own: other ranks share it than the rest."""

    def __init__(self, shape: ModelShape, tensor: TensorRanks, ranks: ExpertRanks) -> None:
        super().__init__()
        held, between = shape.experts // ranks.size, shape.expert_intermediate // tensor.size
        self.gate = nn.Parameter(torch.empty(held, between, shape.hidden))
        self.up = nn.Parameter(torch.empty(held, between, shape.hidden))
        self.down = nn.Parameter(torch.empty(held, shape.hidden, between))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Compute rows [R, D], the first counts[0] of them by the first expert, and so on."""
        ends = torch.tensor(counts, device=rows.device).cumsum(0).int() if _has_grouped_kernel(rows) else None
        between = silu(_grouped(rows, self.gate, counts, ends)) * _grouped(rows, self.up, counts, ends)
        return _grouped(between, self.down, counts, ends)


class Mixture(nn.Module):
    """Each token is computed by the experts its router gives the highest probability, and weighs their answers."""

    def __init__(self, shape: ModelShape, tensor: TensorRanks, ranks: ExpertRanks, place: int) -> None:
        """Build one; `place` is its number among the layers that have experts."""
        super().__init__()
        self.tensor, self.ranks, self.place = tensor, ranks, place
        self.num_experts, self.per_token = shape.experts, shape.experts_per_token
        self.normalized = shape.normalized_gates
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = Experts(shape, tensor, ranks)

    def forward(self, x_TD: Tensor, work: Work) -> Tensor:
        """Return what the layer adds to each token. Collective over tensor and expert ranks."""
        x = self.tensor.enter(x_TD, work.num_tokens)
        gates_Tk, chosen_Tk = self._route(x, None if work.routes is None else work.routes[:, self.place])
        order = chosen_Tk.flatten().argsort(stable=True)
        token = order // self.per_token
        counts = torch.bincount(chosen_Tk.flatten(), minlength=self.num_experts)
        computed = self.ranks.compute(x[token], counts, self.experts)
        weighted = computed * gates_Tk.flatten()[order, None]
        return self.tensor.leave(torch.zeros_like(x).index_add(0, token, weighted))

    def _route(self, x: Tensor, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return weights and numbers of each token's experts. Every tensor rank finds the same."""
        logits = linear(x, self.tensor.shared(self.router.weight))
        probabilities = logits.float().softmax(-1)
        gates, chosen = probabilities.topk(self.per_token, -1)
        if recorded is not None:
            chosen = torch.where(recorded < 0, chosen, recorded)
            gates = probabilities.gather(1, chosen)
        if self.normalized:
            gates = gates / gates.sum(-1, keepdim=True)
        return gates.to(x.dtype), chosen


def _has_grouped_kernel(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype is torch.bfloat16 and rows.shape[0] > 0


def _grouped(rows: Tensor, weight: Tensor, counts: list[int], ends: Tensor | None) -> Tensor:
    """Multiply each run of rows [R, in] by its own matrix of weight [L, out, in]."""
    if ends is not None:
        product: Tensor = grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
        return product
    runs = torch.split(rows, counts)
    return torch.cat([linear(run, matrix) for run, matrix in zip(runs, weight.unbind(0), strict=True)])
