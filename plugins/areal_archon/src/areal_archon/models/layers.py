"""Attention and feed-forward of one decoder block, on packed tokens and on this rank's part of heads and columns.

Knows: projections, biases, norms of queries and keys, SwiGLU.
Does not know: how parts are exchanged (`areal_archon.tensor`), or which attention kernel runs.

Legend: T tokens the layers see, D hidden, H heads, K key and value heads, C head dimension.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from areal_archon.models.rotary import rotate
from areal_archon.tensor import TensorRanks
from areal_torch import attention
from areal_torch.attention import Packing
from areal_torch.shape import ModelShape


@frozen(eq=False)
class Work:
    """What every block of one pass needs besides hidden states: where tokens stand, and their angles [T, C].

    `routes` are recorded experts of each token, int64 [T, layers with experts, k], -1 where the router chooses.
    """

    packing: Packing
    cos: Tensor
    sin: Tensor
    routes: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Return T, whatever run of tokens a tensor rank keeps between cut parts."""
        return self.cos.shape[0]


class Norm(nn.Module):
    """Root-mean-square norm (arXiv:1910.07467); used through `normalized`, which is told the weight to use."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def normalized(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x with each last dimension at a mean square of one, times weight."""
        return rms_norm(x, weight.shape, weight, self.eps)


class Attention(nn.Module):
    """Causal attention with grouped queries; each tensor rank has a part of the heads."""

    def __init__(self, shape: ModelShape, tensor: TensorRanks) -> None:
        super().__init__()
        self.tensor = tensor
        self.head_dim = shape.head_dim
        queries = shape.heads // tensor.size * shape.head_dim
        keys = shape.kv_heads // tensor.size * shape.head_dim
        self.query = nn.Linear(shape.hidden, queries, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.hidden, keys, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.hidden, keys, bias=shape.qkv_bias)
        self.out = nn.Linear(queries, shape.hidden, bias=shape.out_bias)
        self.query_norm = Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None
        self.key_norm = Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None

    def forward(self, x_TD: Tensor, work: Work) -> Tensor:
        """Let every token look at those before it in its sequence."""
        x = self.tensor.enter(x_TD, work.num_tokens)
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        q, k = self._normalized(q, self.query_norm), self._normalized(k, self.key_norm)
        q, k = rotate(q, work.cos, work.sin), rotate(k, work.cos, work.sin)
        seen = attend(q, k, v, work.packing)
        return _left(self.tensor, seen.flatten(1), self.out)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.head_dim).transpose(0, 1)

    def _normalized(self, heads: Tensor, norm: Norm | None) -> Tensor:
        """Norm each head. The weight is whole on every rank, its gradient of this rank's heads only."""
        return heads if norm is None else norm.normalized(heads, self.tensor.shared(norm.weight))


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202); each tensor rank has a part of the columns between."""

    def __init__(self, shape: ModelShape, tensor: TensorRanks) -> None:
        super().__init__()
        self.tensor = tensor
        between = shape.intermediate // tensor.size
        self.gate = nn.Linear(shape.hidden, between, bias=shape.feed_forward_bias)
        self.up = nn.Linear(shape.hidden, between, bias=shape.feed_forward_bias)
        self.down = nn.Linear(between, shape.hidden, bias=shape.feed_forward_bias)

    def forward(self, x_TD: Tensor, work: Work) -> Tensor:
        """Return what the layer adds to each token."""
        x = self.tensor.enter(x_TD, work.num_tokens)
        return _left(self.tensor, silu(self.gate(x)) * self.up(x), self.down)


def _left(tensor: TensorRanks, x: Tensor, last: nn.Linear) -> Tensor:
    """End a cut part with its last matrix; the bias is added once, to the sum."""
    out = tensor.leave(last(x) if last.bias is None else linear(x, last.weight))
    return out if last.bias is None else out + tensor.between(last.bias)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Attend without the compiler: it would compile anew for every set of sequence lengths."""
    return attention.attend(q, k, v, packing)
