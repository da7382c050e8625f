"""The reference trainer: states it writes and goes on from, weights it saves and sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_core.contract.errors import (
    CheckpointError,
    CoverageError,
    FingerprintMismatch,
    StorageError,
)
from areal_core.contract.train import (
    Head,
    LoraSpec,
    OptimizerSpec,
)
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.objectives import PolicyGradient

from .trainers import data, sent, started


def test_resume_is_exact_to_the_bit(model: Path, tmp_path: Path) -> None:
    """Weights, moments, schedule and random state: two more steps are equal, and so is a random number."""
    spec = OptimizerSpec(lr=1e-2, schedule="cosine", warmup_steps=2, total_steps=9, weight_decay=0.1)
    first = started(model, optimizer=spec)
    first.version = 3
    first.train_step(data(), PolicyGradient())
    first.save_state(tmp_path / "state")
    expected = [first.train_step(data(), PolicyGradient()) for _ in range(2)]
    drawn = torch.rand(3)

    second = started(model, optimizer=spec, seed=99)
    second.load_state(tmp_path / "state")
    actual = [second.train_step(data(), PolicyGradient()) for _ in range(2)]

    assert second.version == 3
    assert [(r.loss, r.grad_norm, r.lr) for r in expected] == [(r.loss, r.grad_norm, r.lr) for r in actual]
    assert torch.equal(drawn, torch.rand(3))
    left, right = sent(first).tensors, sent(second).tensors
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_no_file_of_a_state_is_a_pickle(model: Path, tmp_path: Path) -> None:
    """Law 11: safetensors and json, nothing else."""
    started(model).save_state(tmp_path / "state")

    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["rank-00000.safetensors", "state.json"]


def test_states_of_other_roles_are_refused(model: Path, tmp_path: Path) -> None:
    """A critic does not load an actor's state, nor a frozen role a trained one's."""
    started(model).save_state(tmp_path / "state")

    with pytest.raises(CheckpointError, match="another model or role"):
        started(model, head=Head.VALUE).load_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match="another model or role"):
        started(model, optimizer=None).load_state(tmp_path / "state")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_weights_are_those_held_and_reload(model: Path, dtype: str, tmp_path: Path) -> None:
    """A model folder in the spec's dtype, with the tokenizer, that this engine and transformers read."""
    engine = started(model, dtype=dtype)
    engine.train_step(data(), PolicyGradient())

    engine.save_weights(tmp_path / "out")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert str(loaded.dtype) == f"torch.{dtype}"
    tensors = sent(engine).tensors
    assert {name for name, _ in loaded.named_parameters()} == set(tensors)
    assert all(torch.equal(parameter, tensors[name]) for name, parameter in loaded.named_parameters())
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    started(tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_a_storage_error(model: Path, tmp_path: Path) -> None:
    """And nothing is left."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        started(model).save_weights(tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("bucket_bytes", [1, 20_000, 1 << 30])
def test_every_tensor_is_sent_once_in_buckets_of_the_size_asked_for(model: Path, bucket_bytes: int) -> None:
    """Names, shapes and bytes are those of the folder; the tied head is named, not sent twice."""
    stored = load_file(model / "model.safetensors")

    sink = sent(started(model), bucket_bytes=bucket_bytes)

    assert sink.manifest is not None
    assert {spec.name for spec in sink.manifest.tensors} == set(stored) == set(sink.tensors)
    assert sink.manifest.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert sink.manifest.version == 1
    assert all(torch.equal(stored[name], tensor) for name, tensor in sink.tensors.items())
    for bucket in sink.buckets:
        assert len(bucket) == 1 or sum(stored[name].nbytes for name in bucket) <= bucket_bytes
    assert len(sink.buckets) == {1: 24, 1 << 30: 1}.get(bucket_bytes, len(sink.buckets))


def test_bytes_changed_on_the_way_are_noticed(model: Path) -> None:
    """One bit in one tensor: FingerprintMismatch names it, and the sink is aborted."""
    sink = MemorySink(spoil=lambda name, t: t + (name == "model.norm.weight"))
    with pytest.raises(FingerprintMismatch, match=r"model\.norm\.weight"):
        started(model).send_weights(sink, 1)
    assert sink.aborted


def test_a_tensor_the_transport_lost_is_noticed(model: Path) -> None:
    """A receipt must be about exactly what was sent."""

    class Losing(MemorySink):
        def finish(self) -> Any:
            self.tensors["stray"] = self.tensors.pop("model.norm.weight")
            self.manifest = None
            return type("R", (), {"fingerprints": dict.fromkeys(self.tensors, ""), "version": 1})()

    sink = Losing()
    with pytest.raises(CoverageError, match="other tensors"):
        started(model).send_weights(sink, 1)
    assert sink.aborted


def test_experts_are_sent_under_their_folder_names(tmp_path: Path) -> None:
    """Transformers fuses a layer's experts; the fleet and the folder get each expert by name."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "moe")
    stored = load_file(tmp_path / "moe" / "model.safetensors")

    engine = started(tmp_path / "moe")
    sink = sent(engine)
    engine.save_weights(tmp_path / "out")

    for found in (sink.tensors, load_file(tmp_path / "out" / "model.safetensors")):
        assert found.keys() == stored.keys()
        assert all(torch.equal(stored[name], tensor) for name, tensor in found.items())
    assert "model.layers.0.mlp.experts.1.up_proj.weight" in stored


def test_an_adapter_lies_beside_the_merged_model(model: Path, tmp_path: Path) -> None:
    """The folder is a model as any other, without an adapter of its own names; `adapter/` has A and B alone."""
    adapter = LoraSpec(rank=2, alpha=4.0, targets=("q_proj",))
    engine = started(model, lora=adapter)
    engine.train_step(data(), PolicyGradient())

    engine.save_weights(tmp_path / "out")

    merged, base = load_file(tmp_path / "out" / "model.safetensors"), load_file(model / "model.safetensors")
    assert {name for name in base if not torch.equal(base[name], merged[name])} == {
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)
    }
    assert merged.keys() == base.keys()
    assert len(load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")) == 4
    started(tmp_path / "out")
    started(model).save_weights(tmp_path / "whole")
    assert not (tmp_path / "whole" / "adapter").exists()


def test_a_state_of_an_adapter_is_of_its_base(model: Path, tmp_path: Path) -> None:
    """It holds A and B only: on other base weights it would be another model, and is refused."""
    adapter = LoraSpec(rank=2, alpha=4.0, targets=("q_proj",))
    other = make_tiny_model(tmp_path / "other", seed=1)
    engine = started(model, lora=adapter)
    engine.save_state(tmp_path / "state")

    with safe_open(tmp_path / "state" / "rank-00000.safetensors", framework="pt") as file:
        assert all(".lora_" in name for name in file.keys() if not name.startswith("own/"))  # noqa: SIM118
    with pytest.raises(CheckpointError, match="base"):
        started(other, lora=adapter).load_state(tmp_path / "state")
