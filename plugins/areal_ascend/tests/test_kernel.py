"""The NPU's fused attention as the plugin calls it, against one dense call per sequence, on a stand-in of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ModelError
from areal_torch.attention import Packing, attend

pytestmark = pytest.mark.ascend


def packing(lengths: list[int]) -> Packing:
    """Return sequences of these lengths, on an NPU."""
    ids = torch.zeros(sum(lengths), dtype=torch.int64)
    return Packing.of(Batch.of({"input_ids": ids}, {}, torch.tensor(lengths)).to(torch.device("npu")))


def inputs(tokens: int, heads: int = 4, kv_heads: int = 2, width: int = 8) -> list[torch.Tensor]:
    """Return queries, keys and values on the CPU, tokens first."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(tokens, count, width, generator=generator) for count in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("lengths", [[5], [2, 3, 3, 1], [1, 1, 7]])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("most", [1024, 2])
def test_it_equals_dense_attention(
    lengths: list[int], kv_heads: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradient, for grouped heads, in one call or in several."""
    from areal_ascend import attention

    monkeypatch.setattr(attention, "MOST_SEQUENCES", most)
    given = inputs(sum(lengths), kv_heads=kv_heads)
    results = []
    for device in ("cpu", "npu"):
        leaves = [tensor.clone().to(device).requires_grad_() for tensor in given]
        where = packing(lengths)
        if device == "npu":
            out = attention.fused_attention(leaves[0], leaves[1], leaves[2], where, 0.3)
        else:
            out = attend(*(leaf.transpose(0, 1) for leaf in leaves), where, 0.3)
        out.square().sum().backward()
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        results.append([tensor.detach().cpu() for tensor in (out, *grads)])

    assert len(results[0]) == 4
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_calls_stay_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call holds so many sequences and tokens at most; every sequence is in one."""
    from areal_ascend import attention

    monkeypatch.setattr(attention, "MOST_SEQUENCES", 3)
    monkeypatch.setattr(attention, "MOST_TOKENS", 10)

    assert list(attention.calls([4, 4, 5, 1, 1, 1])) == [[4, 8], [5, 6, 7], [1]]
    assert list(attention.calls([12, 1])) == [[12], [1]]


@pytest.mark.parametrize(("heads", "width"), [(257, 8), (4, 769)])
def test_heads_that_do_not_fit_are_refused(heads: int, width: int) -> None:
    """With the limits of the kernel, before it is called."""
    from areal_ascend.attention import fused_attention

    query, key, value = inputs(2, heads, heads, width)

    with pytest.raises(ModelError, match="does not fit an NPU's kernel"):
        fused_attention(query, key, value, packing([2]), None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"actual_seq_qlen": [2, 4]}, "ends that rise to T"),
        ({"actual_seq_qlen": [0, 2, 5]}, "as many queries as keys"),
        ({"sparse_mode": 0}, "causal mask"),
        ({"atten_mask": None}, "causal mask"),
        ({"keep_prob": 0.5}, "no dropout"),
        ({"pse": True}, "pse"),
    ],
)
def test_the_stand_in_takes_nothing_else(change: dict[str, Any], named: str) -> None:
    """A call that an NPU would answer with other numbers is an error here, so the tests above cannot miss it."""
    import torch_npu

    query, key, value = (tensor.npu() for tensor in inputs(5))
    given = {
        "atten_mask": torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1),
        "actual_seq_qlen": [2, 5],
        "actual_seq_kvlen": [2, 5],
        "sparse_mode": 3,
    }
    torch_npu.npu_fusion_attention(query, key, value, 4, "TND", **given)
    wrong = {name: query if value is True else value for name, value in change.items()}

    with pytest.raises(RuntimeError, match=named):
        torch_npu.npu_fusion_attention(query, key, value, 4, "TND", **{**given, **wrong})
