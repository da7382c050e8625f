"""Packed attention against one forward pass per sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import varlen
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head, Output
from areal_torch import attention, hf
from areal_torch.attention import Packing, packed_attention, use_kernel
from areal_torch.model import PackedModel
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (1, 0), (2, 12), (1, 4)]
BOTH = frozenset({Output.LOGPROBS, Output.ENTROPY})


def folder_of(kind: str, path: Path) -> Path:
    """Write a model of that kind; the MoE one is not among the tiny models."""
    if kind != "qwen3_moe":
        return make_tiny_model(path, kind=kind, tied=kind != "llama")
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    return path


def packed(path: Path, temperature: float = 1.0) -> PackedModel:
    """Load as engines do."""
    config = hf.load_config(str(path), Head.CAUSAL_LM)
    return PackedModel(hf.load_model(str(path), config, Head.CAUSAL_LM), Head.CAUSAL_LM, temperature=temperature)


def one_by_one(model: Any, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs and entropy from plain transformers, one sequence at a time."""
    logprobs, entropies = [], []
    for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        ids = batch.tokens["input_ids"][start:end]
        log_p = (model(input_ids=ids[None]).logits[0, :-1] / temperature).log_softmax(-1)
        zero = torch.zeros(1)
        logprobs += [zero, log_p.gather(1, ids[1:, None])[:, 0]]
        entropies += [zero, -(log_p.exp() * log_p).sum(-1)]
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "qwen3_moe"])
def test_columns_and_gradients_equal_one_forward_per_sequence(kind: str, tmp_path: Path) -> None:
    """Any model that goes through transformers' attention interface: same log-probs, entropy and gradient."""
    path = folder_of(kind, tmp_path)
    model, plain = packed(path, 0.7), AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    batch = make_batch(SHAPES)
    mask = batch.tokens["loss_mask"]
    weights = torch.randn(2, batch.num_tokens, generator=torch.Generator().manual_seed(0)) * mask

    columns = model(batch, BOTH)
    expected = one_by_one(plain, batch, 0.7)
    (columns[Output.LOGPROBS] * weights[0] + columns[Output.ENTROPY] * weights[1]).sum().backward()
    (expected[0] * weights[0] + expected[1] * weights[1]).sum().backward()

    torch.testing.assert_close(columns[Output.LOGPROBS], expected[0] * mask, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(columns[Output.ENTROPY], expected[1] * mask, rtol=1e-5, atol=2e-6)
    gradients = {name: parameter.grad for name, parameter in model.hf.named_parameters()}
    for name, parameter in plain.named_parameters():
        error = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert float(error) < 2e-6, name


def test_columns_are_zero_where_nothing_is_trained(tmp_path: Path) -> None:
    """Prompts cost no logits; a sequence's first token was not predicted by anything, masked or not."""
    batch = make_batch(SHAPES)
    everything = batch.with_tokens(loss_mask=torch.ones(batch.num_tokens, dtype=torch.bool))
    model = packed(make_tiny_model(tmp_path))

    trained, whole = model(batch, BOTH), model(everything, BOTH)

    mask, first = batch.tokens["loss_mask"], batch.positions == 0
    assert torch.equal(trained[Output.LOGPROBS] < 0, mask)
    assert torch.equal(trained[Output.ENTROPY] > 0, mask)
    assert torch.equal(whole[Output.LOGPROBS] < 0, ~first)


def test_a_batch_that_trains_nothing_gives_zeros(tmp_path: Path) -> None:
    """And a gradient of zero, so that a rank without tokens of its own can take part."""
    batch = make_batch(SHAPES)
    batch = batch.with_tokens(loss_mask=torch.zeros(batch.num_tokens, dtype=torch.bool))
    model = packed(make_tiny_model(tmp_path))

    columns = model(batch, BOTH)
    columns[Output.LOGPROBS].sum().backward()

    assert not columns[Output.LOGPROBS].any()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sampled_from([1, 2, 4]), st.integers(0, 99))
def test_any_order_of_lengths_is_exact(lengths: list[int], kv_heads: int, seed: int) -> None:
    """Sorted or not, neighbours of equal length or not, grouped queries or not: as a masked softmax gives."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    query = torch.randn(1, 4, total, 8, generator=generator)
    key, value = (torch.randn(1, kv_heads, total, 8, generator=generator) for _ in range(2))
    batch = Batch.of({"input_ids": torch.zeros(total, dtype=torch.int64)}, {}, torch.tensor(lengths))

    out, _ = packed_attention(torch.nn.Module(), query, key, value, None, scaling=0.3, packing=Packing.of(batch))

    ids = batch.sequence_ids
    allowed = (ids[:, None] == ids[None]) & torch.ones(total, total, dtype=torch.bool).tril()
    wide = [tensor.repeat_interleave(4 // kv_heads, dim=1) for tensor in (key, value)]
    scores = (query @ wide[0].transpose(2, 3) * 0.3).masked_fill(~allowed, float("-inf"))
    torch.testing.assert_close(out, (scores.softmax(-1) @ wide[1]).transpose(1, 2), rtol=1e-5, atol=1e-6)


def test_runs_join_neighbours_of_equal_length() -> None:
    """Sorting by length gives the fewest kernel calls."""
    batch = Batch.of({"input_ids": torch.zeros(9, dtype=torch.int64)}, {}, torch.tensor([2, 2, 3, 2]))

    packing = Packing.of(batch)

    assert packing.runs == ((2, 2), (1, 3), (1, 2))
    assert packing.max_length == 3
    assert packing.predicted.tolist() == [1, 3, 5, 6, 8]


def test_a_device_with_a_kernel_of_its_own_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets tokens first, key heads as they are and the packing; devices of other types keep what they had."""
    monkeypatch.setattr(attention, "_KERNELS", {})
    seen: list[Any] = []

    def kernel(query: Any, key: Any, value: Any, packing: Packing, scaling: float | None) -> torch.Tensor:
        seen.append((query.shape, key.shape, value.shape, packing.runs, scaling))
        return query * 2

    use_kernel("npu", kernel)
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    packing = Packing.of(Batch.of({"input_ids": torch.zeros(5, dtype=torch.int64)}, {}, torch.tensor([2, 3])))
    before, _ = packed_attention(torch.nn.Module(), query, key, key, None, scaling=0.3, packing=packing)
    use_kernel("cpu", kernel)
    after, _ = packed_attention(torch.nn.Module(), query, key, key, None, scaling=0.3, packing=packing)

    assert seen == [((5, 4, 8), (5, 2, 8), (5, 2, 8), ((1, 2), (1, 3)), 0.3)]
    assert torch.equal(query.transpose(1, 2) * 2, after)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("torch_has", ["no word for groups", "one"])
def test_the_flash_kernel_is_asked_in_the_words_of_this_torch(monkeypatch: pytest.MonkeyPatch, torch_has: str) -> None:
    """Torch 2.11 groups heads unasked and refuses the word; later ones refuse groups without it."""

    def kernel(query: Any, key: Any, value: Any, *_: Any, scale: Any, window_size: Any) -> torch.Tensor:
        assert window_size == (-1, 0)
        return attention._by_length(query, key, value, packing.runs, scale)

    def later(*tensors: Any, scale: Any, window_size: Any, enable_gqa: bool = False) -> torch.Tensor:
        assert enable_gqa
        return kernel(*tensors, scale=scale, window_size=window_size)

    monkeypatch.setattr(varlen, "varlen_attn", kernel if torch_has == "no word for groups" else later)
    query, key = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    packing = Packing.of(Batch.of({"input_ids": torch.zeros(5, dtype=torch.int64)}, {}, torch.tensor([2, 3])))

    out = attention._flash(query, key, key, packing, 0.3)

    torch.testing.assert_close(out, attention._by_length(query, key, key, packing.runs, 0.3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head_dim", [64, 12])
def test_the_kernel_of_a_gpu_equals_the_dense_one(head_dim: int) -> None:
    """On a GPU in bfloat16: grouped queries, several lengths, output and gradient; flash takes multiples of eight."""
    generator = torch.Generator().manual_seed(0)
    batch = Batch.of({"input_ids": torch.zeros(90, dtype=torch.int64)}, {}, torch.tensor([40, 7, 43]))
    inputs = [torch.randn(1, heads, 90, head_dim, generator=generator) for heads in (4, 2, 2)]
    results = []
    for device, dtype in (("cuda", torch.bfloat16), ("cpu", torch.float32)):
        leaves = [tensor.to(device, dtype).requires_grad_() for tensor in inputs]
        out, _ = packed_attention(torch.nn.Module(), *leaves, None, packing=Packing.of(batch.to(device)))
        out.float().square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])

    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left.float().cpu(), right, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "s_aux"])
def test_other_attention_is_refused(name: str) -> None:
    """A model that asks for more than causal attention gets an error, not a wrong result."""
    tensor = torch.zeros(1, 1, 2, 4)
    packing = Packing.of(make_batch([(1, 1)]))
    module = torch.nn.Module()

    with pytest.raises(ModelError, match=name):
        packed_attention(module, tensor, tensor, tensor, None, packing=packing, **{name: 4.0})
    with pytest.raises(ModelError, match="keyword arguments"):
        packed_attention(module, tensor, tensor, tensor, None)
