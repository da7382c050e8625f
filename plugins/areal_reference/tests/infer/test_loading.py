"""A folder the generator cannot serve is refused at start, with what, why and fix."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.mistral import MistralConfig

from areal_core.contract.errors import GenerationFailed, ModelError
from areal_core.contract.inference import InferenceSpec
from areal_reference.infer.attention import ATTENTION_NAME, ProbeStep
from areal_reference.infer.loading import _agrees_with_eager, _few_tokens, load_model
from areal_torch.testing.serving import FolderWeights, ask, full_logits

FULL = ["full_attention"] * 2
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


def save(config, path):
    """Write a random model of that configuration."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def start(serve, folder, **options):
    """Start an engine on a folder, and stop it."""

    async def run():
        async with serve(folder, **options):
            pass

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: shutil.rmtree(folder), "does not exist"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), "safetensors"),
        (lambda folder: (folder / "config.json").write_text("{}"), "causal language model"),
    ],
)
def test_an_unfit_folder_is_refused(spoil, words, serve, model_folder, tmp_path):
    """Missing folder, config or weights, torn weights, no architecture: ModelError names it."""
    folder = shutil.copytree(model_folder(), tmp_path / "m")
    spoil(folder)
    with pytest.raises(ModelError, match=words):
        start(serve, folder)


def test_weights_that_miss_a_tensor_are_refused(serve, model_folder, tmp_path):
    """A deeper config than the weights would serve random layers."""
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="missing"):
        start(serve, folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Gemma2Config(**SMALL, query_pre_attn_scalar=8), "soft-capped|sliding"),
        (
            GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2),
            "s_aux",
        ),
        (MistralConfig(**SMALL, sliding_window=16), "sliding window of 16"),
    ],
    ids=["soft caps", "attention sinks", "sliding window"],
)
def test_attention_the_slab_cannot_do_is_refused(config, words, serve, tmp_path):
    """Rather than generate from a model that was never trained."""
    with pytest.raises(ModelError, match=words):
        start(serve, save(config, tmp_path / "m"))


def test_logits_that_differ_from_the_architectures_own_attention_are_noticed(model_folder):
    """The probe compares with eager attention, and leaves the slab's in place."""
    loaded = load_model(InferenceSpec(model_path=str(model_folder())))
    own = _few_tokens(loaded.model, loaded.device, ProbeStep())
    assert _agrees_with_eager(loaded.model, loaded.device, own)
    assert not _agrees_with_eager(loaded.model, loaded.device, own + 0.1 * own.abs().max())
    assert loaded.model.config._attn_implementation == ATTENTION_NAME


def test_rotary_scaling_that_depends_on_the_batch_is_refused(serve, model_folder, tmp_path):
    """Requests would change each other."""
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    with pytest.raises(ModelError, match="dynamic"):
        start(serve, folder)


@pytest.mark.parametrize(("options", "words"), [({"context_length": 999}, "999"), ({"dtype": "int8"}, "int8")])
def test_a_spec_the_model_cannot_meet_is_refused(options, words, serve):
    """A context beyond the model's, or a dtype that is none."""
    with pytest.raises(ModelError, match=words):
        start(serve, None, **options)


@pytest.mark.parametrize("config", [Qwen3MoeConfig, MixtralConfig])
def test_mixtures_of_experts_are_served_and_updated(config, serve, tmp_path):
    """Their fused experts are updated under the names of the folder's tensors."""
    experts = {"num_experts": 4, "moe_intermediate_size": 32} if config is Qwen3MoeConfig else {"num_local_experts": 4}
    model = config(**SMALL, num_experts_per_tok=2, **experts)
    folder = save(model, tmp_path / "m")
    request = ask(5, 9, 7, temperature=0.0, max_new_tokens=10, ignore_eos=True)
    weights = FolderWeights.of(folder)
    weights.tensors = {name: tensor * 1.5 for name, tensor in weights.tensors.items()}

    async def run():
        async with serve(folder) as engine:
            before = await engine.generate(request)
            await engine.receive_weights(weights.offer(1), 1)
            await engine.commit_weights(1)
            served = {n: p.clone() for n, p in engine.running.loaded.model.named_parameters()}
            return before, served

    before, served = asyncio.run(run())
    logits = full_logits(folder, [5, 9, 7, *before.output_ids])[2:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(before.output_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(before.logprobs), expected, atol=1e-4, rtol=0)
    for name, tensor in AutoModelForCausalLM.from_pretrained(folder).named_parameters():
        torch.testing.assert_close(served[name], tensor.detach() * 1.5)


def test_stop_strings_need_a_tokenizer(serve, model_folder, tmp_path):
    """A folder without one serves everything else."""
    folder = shutil.copytree(model_folder(), tmp_path / "m", ignore=shutil.ignore_patterns("token*", "special*"))

    async def run():
        async with serve(folder) as engine:
            await engine.generate(ask(5, max_new_tokens=1))
            await engine.generate(ask(5, stop=("x",)))

    with pytest.raises(GenerationFailed, match="no tokenizer"):
        asyncio.run(run())
