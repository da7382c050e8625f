"""Attention over packed sequences by the NPU's own fused kernel.

Knows: `torch_npu.npu_fusion_attention` in layout TND, and the limits its documentation gives.
Does not know: models; where the sequences lie comes with the call.

Checked against the schema of torch-npu 2.13.0 and the vendor's page about the operator. What it computes on
an NPU was not: see the README.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch_npu
from torch import Tensor

from areal_core.contract.errors import ModelError
from areal_torch.attention import Packing

MOST_SEQUENCES = 1024
MOST_TOKENS = 1 << 20
MOST_HEADS = 256
WIDEST_HEAD = 768
_MASK_SIZE = 2048
_CAUSAL = 3
"""Sparse mode 3: causal from the last token of a sequence back, told by the upper triangle of 2048 x 2048."""


def fused_attention(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None) -> Tensor:
    """Attend causally within each sequence: [T, H, D] and twice [T, K, D] -> [T, H, D]. One call for all of them.

    Raises:
        ModelError: heads the kernel does not take.
    """
    _check_heads(query)
    lengths = [length for count, length in packing.runs for _ in range(count)]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outs, start = [], 0
    for ends in calls(lengths):
        part = slice(start, start + ends[-1])
        outs.append(_attend(query[part], key[part], value[part], ends, scale))
        start = part.stop
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def calls(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield where the sequences of each call end, so that no call holds more sequences or tokens than one may."""
    held: list[int] = []
    for length in lengths:
        if held and (len(held) == MOST_SEQUENCES or sum(held) + length > MOST_TOKENS):
            yield list(accumulate(held))
            held = []
        held.append(length)
    yield list(accumulate(held))


def _attend(query: Tensor, key: Tensor, value: Tensor, ends: list[int], scale: float) -> Tensor:
    found: tuple[Tensor, ...] = torch_npu.npu_fusion_attention(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        query.shape[1],
        "TND",
        atten_mask=_mask(query.device),
        scale=scale,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        sparse_mode=_CAUSAL,
    )
    return found[0]


@functools.cache
def _mask(device: torch.device) -> Tensor:
    """Return the one mask of every call; True is what may not be seen. 4 MiB."""
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=device).triu(1)


def _check_heads(query: Tensor) -> None:
    _, heads, width = query.shape
    if heads > MOST_HEADS or width > WIDEST_HEAD:
        raise ModelError(
            f"attention of {heads} heads of width {width} does not fit an NPU's kernel",
            why=f"npu_fusion_attention takes {MOST_HEADS} heads of width {WIDEST_HEAD} at most",
            fix="shard the heads over tensor ranks (t), or choose another model",
        )
