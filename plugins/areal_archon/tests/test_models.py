"""The model definitions in one process, against transformers: every switch a configuration can turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor
from torch.nn.functional import linear
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from areal_archon.fitting import check_fits
from areal_archon.loading import fill
from areal_archon.models.decoder import Decoder, Setting
from areal_archon.models.mixture import _grouped
from areal_archon.models.names import parameters_of
from areal_archon.models.rotary import Rotary
from areal_archon.sharding import Held
from areal_core.contract.batch import Batch
from areal_core.contract.errors import LayoutError, ModelError
from areal_core.contract.train import ROUTED_EXPERTS, Head, Output
from areal_torch import hf
from areal_torch.attention import Packing
from areal_torch.parameters import open_folder
from areal_torch.pieces import box_of
from areal_torch.shape import read_shape
from areal_torch.testing.batches import make_batch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
PADDING = 13
"""An id given and generated, whose row transformers does not train as what embeds it; it counts from either end."""
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama, biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, wide heads": LlamaConfig(**SIZES, head_dim=16),
    "llama, scaled by parts": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama, scaled evenly": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    ),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, padding": Qwen2Config(**SIZES, pad_token_id=PADDING),
    "llama, tied, padding": LlamaConfig(**{**SIZES, "tie_word_embeddings": True}, pad_token_id=PADDING - 64),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "qwen3, tied, yarn": Qwen3Config(**{**SIZES, "tie_word_embeddings": True}, head_dim=8, rope_parameters=YARN),
    "moe": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8, norm_topk_prob=True),
    "moe, raw gates, some layers": Qwen3MoeConfig(
        **SIZES, **EXPERTS, head_dim=8, norm_topk_prob=False, mlp_only_layers=[1]
    ),
    "moe, every second layer": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=8, decoder_sparse_step=2),
}


def batch() -> Batch:
    return make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (1, 1)])


def made(path: Path, config: Any) -> Any:
    """Write a model of that configuration with wide random weights, biases and norms; return it. Any: transformers."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 if parameter.ndim > 1 else noise * 0.1 + 1.0)
    model.save_pretrained(path)
    return model


def read(path: Path) -> tuple[Decoder, dict[str, Tensor]]:
    """Read a folder into a decoder of this engine; return its parameters under the folder's names too."""
    config = hf.load_config(str(path), Head.CAUSAL_LM)
    shape = read_shape(str(path), config, Head.CAUSAL_LM, engine="archon")
    decoder = Decoder(shape, Setting(rotary=Rotary.of(str(path), config, shape.head_dim)))
    parameters = parameters_of(shape, decoder.named_parameters())
    named = dict(decoder.named_parameters())
    held = [Held(tensor=named[each.name], parameter=each, box=box_of(named[each.name])) for each in parameters]
    fill(held, open_folder(str(path), parameters))
    return decoder, {name: part for each in parameters for name, part in each.split(named[each.name]).items()}


def scores(decoder: Decoder, packed: Batch) -> dict[str, Tensor]:
    packing = Packing.of(packed)
    outputs = frozenset({Output.LOGPROBS, Output.ENTROPY})
    found = decoder(packed.tokens["input_ids"], packing=packing, batch=packed, outputs=outputs)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Packed here, one sequence at a time there, in every family and with every switch it has."""
    model = made(tmp_path, CONFIGS[name])
    decoder, parameters = read(tmp_path)
    packed = batch()
    weights = torch.randn(packed.num_tokens, generator=torch.Generator().manual_seed(1))

    expected = torch.zeros(packed.num_tokens)
    for start, end in zip(packed.cu_seqlens[:-1].tolist(), packed.cu_seqlens[1:].tolist(), strict=True):
        ids, mask = packed.tokens["input_ids"][start:end], packed.tokens["loss_mask"][start:end][1:]
        log_p = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        expected[start + 1 : end] = log_p * mask
    found = scores(decoder, packed)[Output.LOGPROBS]
    (weights * expected).sum().backward()
    (weights * found).sum().backward()

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = {
        key: each
        for parameter, tensor in model.named_parameters()
        for key, each in hf.folder_tensors(model, parameter, tensor.grad).items()
    }
    native = dict(decoder.named_parameters())
    owned = parameters_of(decoder.shape, decoder.named_parameters())
    computed = {
        key: part for each in owned for key, part in each.split(torch.as_tensor(native[each.name].grad)).items()
    }
    assert computed.keys() == gradients.keys() == parameters.keys()
    for key, gradient in gradients.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(computed[key], gradient, rtol=0, atol=1e-4 * scale + 1e-7, msg=key)


def test_stages_one_after_another_are_the_whole_model(tmp_path: Path) -> None:
    """A stage is the same class with fewer parameters; the last has its own head, equal to the tied embedding."""
    made(tmp_path, CONFIGS["qwen3, tied, yarn"])
    decoder, _ = read(tmp_path)
    packed, outputs = batch(), frozenset({Output.LOGPROBS})
    stages = [
        Decoder(decoder.shape, decoder.setting, layers=layers, first=number == 0, last=number == 2)
        for number, layers in enumerate((range(1), range(1, 2), range(2, 3)))
    ]
    whole = decoder.state_dict() | {"head.weight": decoder.embedding.weight.detach()}
    for stage in stages:
        stage.load_state_dict({name: whole[name] for name in stage.state_dict()})

    hidden: Any = packed.tokens["input_ids"]
    for stage in stages:
        hidden = stage(hidden, packing=Packing.of(packed), batch=packed, outputs=outputs)

    assert torch.equal(hidden[Output.LOGPROBS], scores(decoder, packed)[Output.LOGPROBS])
    assert sum(len(stage.state_dict()) for stage in stages) == len(whole)


def test_recorded_routes_decide(tmp_path: Path) -> None:
    """The experts named are used whatever the router prefers; rows of -1 are its own choice."""
    made(tmp_path, CONFIGS["moe"])
    decoder, _ = read(tmp_path)
    packed = batch()
    free = torch.full((packed.num_tokens, 3, 3), -1, dtype=torch.int32)
    forced = torch.tensor([5, 0, 2], dtype=torch.int32).expand_as(free)

    plain = scores(decoder, packed)[Output.LOGPROBS]
    same = scores(decoder, packed.with_tokens(**{ROUTED_EXPERTS: free}))[Output.LOGPROBS]
    other = scores(decoder, packed.with_tokens(**{ROUTED_EXPERTS: forced}))[Output.LOGPROBS]

    assert torch.equal(plain, same)
    assert float((plain - other).abs().max().detach()) > 1e-3


def test_a_vocabulary_need_not_divide(tmp_path: Path) -> None:
    """Of 31 entries two tensor ranks take 16 and 15; refused is what would leave a rank without any."""
    made(tmp_path, CONFIGS["qwen3"])
    shape = evolve(read(tmp_path)[0].shape, heads=4, kv_heads=4, intermediate=8)

    check_fits(evolve(shape, vocabulary=31), {"t": 2}, None)
    with pytest.raises(LayoutError, match="t4 leaves a tensor rank without any of 9 entries of the vocabulary"):
        check_fits(evolve(shape, vocabulary=9), {"t": 4}, None)


def test_grouped_products_are_those_of_a_loop() -> None:
    """The kernel accelerators use, with experts nobody asked for among them."""
    counts = [3, 0, 5, 2]
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(10, 16, generator=generator).bfloat16()
    weight = torch.randn(4, 8, 16, generator=generator).bfloat16()
    ends = torch.tensor(counts).cumsum(0).int()

    expected = torch.cat([linear(run, each) for run, each in zip(rows.split(counts), weight, strict=True)])
    torch.testing.assert_close(_grouped(rows, weight, counts, None), expected)
    torch.testing.assert_close(_grouped(rows, weight, counts, ends), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "of type 'dynamic'"),
        ({"hidden_act": "gelu"}, "the activation 'gelu'"),
    ],
)
def test_what_is_not_written_here_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """A configuration this engine would compute wrongly is an error that names it."""
    made(tmp_path, LlamaConfig(**{**SIZES, **changes}))

    with pytest.raises(ModelError, match=says):
        read(tmp_path)
