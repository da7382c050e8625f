"""Model folders: what is refused, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GptOssConfig,
    MambaConfig,
    MambaForCausalLM,
    NemotronConfig,
)

from areal_core.contract.errors import BackendNotFound, CapabilityError, ModelError, ResourceError
from areal_core.contract.train import Head
from areal_torch import hf
from areal_torch.device import compute_dtype, open_device
from areal_torch.testing.models import make_tiny_model


def edit(path: Path, **changes: Any) -> str:
    """Change config.json."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Qwen3Model"]}, "no causal language model"),
        ({"model_type": "unheard_of"}, "cannot be read"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}, "cannot be read"),
    ],
)
def test_unfit_configurations_are_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Before any weight is read; code from the folder is never run."""
    path = edit(make_tiny_model(tmp_path), **changes)

    with pytest.raises(ModelError, match=says):
        hf.load_config(path, Head.CAUSAL_LM)


def test_a_sliding_window_is_refused(tmp_path: Path) -> None:
    """Mistral says it without layer types."""
    path = edit(make_tiny_model(tmp_path, kind="llama"), model_type="mistral", sliding_window=8)

    with pytest.raises(ModelError, match="sliding window of 8"):
        hf.load_config(path, Head.CAUSAL_LM)


@pytest.mark.parametrize("head", list(Head))
def test_missing_folders_are_refused(head: Head, tmp_path: Path) -> None:
    """With the path as it was given."""
    with pytest.raises(ModelError, match="nowhere"):
        hf.load_config(str(tmp_path / "nowhere"), head)


def test_missing_and_unknown_weights_are_refused(tmp_path: Path) -> None:
    """A layer left at random values would train, badly; a layer ignored would be another model."""
    path = make_tiny_model(tmp_path)
    file = path / "model.safetensors"
    weights = load_file(file)
    config = hf.load_config(str(path), Head.CAUSAL_LM)
    name = "model.layers.1.mlp.up_proj.weight"

    save_file({key: tensor for key, tensor in weights.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=f"missing: {name}"):
        hf.load_model(str(path), config, Head.CAUSAL_LM)
    save_file({**weights, "model.layers.2.mlp.up_proj.weight": weights[name].clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"unknown: model\.layers\.2"):
        hf.load_model(str(path), config, Head.CAUSAL_LM)
    save_file({**weights, name: weights[name][:5].clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match="cannot be loaded"):
        hf.load_model(str(path), config, Head.CAUSAL_LM)


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Of configurations that are written in tests. Any: fields of theirs."""


def test_dropout_is_turned_off(tmp_path: Path) -> None:
    """Log-probs in training must be those of scoring."""
    path = edit(make_tiny_model(tmp_path), attention_dropout=0.3)

    assert hf.load_config(path, Head.CAUSAL_LM).attention_dropout == 0.0


def test_layers_are_computed_twice_and_draw_nothing(tmp_path: Path) -> None:
    """Transformers recomputes layers in training only, and there lets what they hold drop."""
    path = str(make_tiny_model(tmp_path))
    model = hf.load_model(path, hf.load_config(path, Head.CAUSAL_LM), Head.CAUSAL_LM).eval()
    model.set_attn_implementation("eager")
    hf.recompute_activations(model)
    computed = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: computed.append(1))

    model(torch.arange(6)[None]).logits.sum().backward()

    assert len(computed) == 2
    assert not any(module.training for layer in model.model.layers for module in layer.children())


def test_what_would_draw_is_turned_off_by_any_name(tmp_path: Path) -> None:
    """Noise of routers and layers left out at random are no dropout by name."""
    path = edit(make_tiny_model(tmp_path), layerdrop=0.2, router_jitter_noise=0.1, hidden_dropout_prob=0.3)

    config = hf.load_config(path, Head.CAUSAL_LM)

    assert (config.layerdrop, config.router_jitter_noise, config.hidden_dropout_prob) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (GptOssConfig(**SMALL, num_local_experts=2, layer_types=["full_attention"] * 2, head_dim=8), "'s_aux'"),
        (NemotronConfig(**SMALL), "does not hand its keyword arguments"),
    ],
)
def test_attention_that_cannot_be_packed_is_refused_before_weights_are_read(
    config: Any, told: str, tmp_path: Path
) -> None:
    """Sinks and attention of their own came to light in the first step only. Any: transformers is not typed here."""
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(ModelError, match=told):
        hf.load_model(str(tmp_path), hf.load_config(str(tmp_path), Head.CAUSAL_LM), Head.CAUSAL_LM)


def test_models_that_carry_a_state_along_are_refused(tmp_path: Path) -> None:
    """A state-space model would run over the borders between packed sequences without a word."""
    config = MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(config).save_pretrained(tmp_path)

    with pytest.raises(ModelError, match="linear_attention"):
        hf.load_config(str(tmp_path), Head.CAUSAL_LM)
    with pytest.raises(ModelError, match="keep packed sequences apart"):
        hf.load_model(str(tmp_path), AutoConfig.from_pretrained(tmp_path), Head.CAUSAL_LM)


def test_tied_tensors_are_named(tmp_path: Path) -> None:
    """The name not sent, and the one that carries its bytes."""
    tied, free = make_tiny_model(tmp_path / "a", tied=True), make_tiny_model(tmp_path / "b", tied=False)

    models = [hf.load_model(str(p), hf.load_config(str(p), Head.CAUSAL_LM), Head.CAUSAL_LM) for p in (tied, free)]

    assert hf.tied_weights(models[0]) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert hf.tied_weights(models[1]) == {}


def test_devices_that_are_not_there_are_refused() -> None:
    """By type and by number; float16 says what to take instead."""
    with pytest.raises(BackendNotFound, match=r"no device named 'tpu'(.|\n)*cpu .*cuda .*npu "):
        open_device("tpu", 0)
    with pytest.raises(ResourceError, match=r"torch_npu (is not installed|cannot be loaded)(.|\n)*areal.ascend"):
        open_device("npu", 0)
    with pytest.raises(ResourceError, match="no cuda device for local rank 99"):
        open_device("cuda", 99)
    with pytest.raises(CapabilityError, match="bfloat16"):
        compute_dtype("float16")
    assert open_device("cpu", 3) == torch.device("cpu")


def test_products_in_float32_are_ones_wherever_an_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch alone would have a GPU's convolutions keep eleven bits of them."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    open_device("cpu", 0)

    assert not torch.backends.cudnn.allow_tf32
