"""Adapters beside linear layers: which layers, what they compute, what leaves the engine, what a state knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from areal_core.contract.errors import CapabilityError, PlanError, WrongType
from areal_core.contract.train import Head, LoraSpec, OptimizerSpec, TrainSpec
from areal_torch import hf, lora
from areal_torch.export import FolderWeights, whole
from areal_torch.group import SingleRank
from areal_torch.testing.models import make_tiny_model

TARGETS = ("q_proj", "down_proj")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    kinds: dict[str, dict[str, Any]] = {
        "tied": {},
        "untied": {"tied": False},
        "other": {"seed": 1},
        "moe": {"kind": "qwen3_moe"},
    }
    return {name: make_tiny_model(root / name, hidden=32, **arguments) for name, arguments in kinds.items()}


def spec_of(path: Path, *, targets: Sequence[str] = TARGETS, head: Head = Head.CAUSAL_LM, **fields: Any) -> TrainSpec:
    adapter = LoraSpec(rank=fields.pop("rank", 2), alpha=fields.pop("alpha", 6.0), targets=tuple(targets))
    given = {"optimizer": OptimizerSpec(), "head": head, **fields}
    return TrainSpec(role="actor", model_path=str(path), lora=adapter, **given)


def loaded(path: Path) -> Any:
    return hf.load_model(str(path), hf.load_config(str(path), Head.CAUSAL_LM), Head.CAUSAL_LM)


def adapted(path: Path, **fields: Any) -> Any:
    model = loaded(path)
    lora.add_adapters(model, spec_of(path, **fields))
    return model


def with_random_b(model: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in lora.adapter_parameters(model).items():
            if name.endswith("lora_B"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model.eval()(input_ids=torch.arange(2, 14)[None], packing=_packing()).logits
    return result


def _packing() -> Any:
    from areal_torch.attention import Packing
    from areal_torch.testing.batches import make_batch

    return Packing.of(make_batch([(1, 11)]))


def test_a_named_layer_gets_a_and_b_and_keeps_its_names(folders: dict[str, Path]) -> None:
    """A [rank, in] and B [out, rank] stand on the named layers of every decoder layer; the folder's names stay."""
    plain, model = loaded(folders["tied"]), adapted(folders["tied"])

    assert list(lora.base_parameters(model)) == [name for name, _ in plain.named_parameters()]
    assert lora.num_parameters(model) == sum(parameter.numel() for parameter in plain.parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in lora.adapter_parameters(model).items()}
    layer = "model.layers.{}.self_attn.q_proj.lora_{}", "model.layers.{}.mlp.down_proj.lora_{}"
    assert shapes == {
        layer[number].format(place, part): shape
        for place in range(2)
        for number, pair in enumerate([((2, 32), (32, 2)), ((2, 64), (32, 2))])
        for part, shape in zip("AB", pair, strict=True)
    }


def test_the_first_pass_is_the_base_models(folders: dict[str, Path]) -> None:
    """B is zero: the logits have the bits of the base model's, and A is not zero."""
    model = adapted(folders["tied"])

    assert torch.equal(logits(loaded(folders["tied"])), logits(model))
    parts = lora.adapter_parameters(model)
    assert all(bool(parameter.any()) == name.endswith("A") for name, parameter in parts.items())


def test_a_depends_on_the_seed_and_on_nothing_else(folders: dict[str, Path]) -> None:
    """One seed gives the same A whatever torch drew before; another seed gives another."""
    torch.manual_seed(0)
    first = lora.adapter_parameters(adapted(folders["tied"], seed=7))
    torch.manual_seed(99)
    again = lora.adapter_parameters(adapted(folders["tied"], seed=7))
    other = lora.adapter_parameters(adapted(folders["tied"], seed=8))

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if name.endswith("A"))


def test_only_the_adapter_has_gradients(folders: dict[str, Path]) -> None:
    """What is trained is A and B; of a frozen role nothing is, and without an adapter everything."""
    model = adapted(folders["tied"])

    held = lora.select_trained(model, frozen=False)

    assert held.keys() == lora.adapter_parameters(model).keys()
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == held.keys()
    assert lora.select_trained(model, frozen=True).keys() == held.keys()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    plain = loaded(folders["tied"])
    assert lora.select_trained(plain, frozen=False).keys() == dict(plain.named_parameters()).keys()
    assert all(parameter.requires_grad for parameter in plain.parameters())


def test_merged_weights_compute_what_the_adapter_computes(folders: dict[str, Path]) -> None:
    """A model of the merged tensors, under the folder's names, gives the logits; the model itself is not touched."""
    model = with_random_b(adapted(folders["untied"]))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights = FolderWeights(model, whole)

    sent = {name: tensor for part in weights.wholes(torch.float32) for name, tensor in part.items()}

    assert weights.shapes() == {name: tuple(tensor.shape) for name, tensor in sent.items()}
    plain = loaded(folders["untied"])
    changed = {name for name, parameter in plain.named_parameters() if not torch.equal(parameter, sent[name])}
    assert changed == {name for name in sent if name.removesuffix(".weight").endswith(TARGETS)}
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(sent[name])
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_the_adapter_is_written_as_peft_has_it(folders: dict[str, Path], tmp_path: Path) -> None:
    """Names, shapes and settings are PEFT's; the two matrices amount to merged minus base."""
    model = with_random_b(adapted(folders["tied"]))

    lora.write_adapter(model, str(folders["tied"]), whole, SingleRank(), tmp_path)

    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 6.0)
    assert config["target_modules"] == ["down_proj", "q_proj"]
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    layer = "model.layers.1.mlp.down_proj"
    product = (
        3.0 * tensors[f"base_model.model.{layer}.lora_B.weight"] @ tensors[f"base_model.model.{layer}.lora_A.weight"]
    )
    merged = dict(lora.merged_tensors(model, whole, torch.float32))[f"{layer}.weight"]
    torch.testing.assert_close(merged - model.get_submodule(layer).weight, product, rtol=1e-4, atol=1e-5)
    assert len(tensors) == len(lora.adapter_parameters(model))


def test_a_target_of_one_layer_is_written_by_its_whole_name(folders: dict[str, Path], tmp_path: Path) -> None:
    """Where an end names more layers than have an adapter, PEFT is told the whole names."""
    model = adapted(folders["tied"], targets=("layers.1.mlp.up_proj",))

    lora.write_adapter(model, str(folders["tied"]), whole, SingleRank(), tmp_path)

    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.1.mlp.up_proj"]


def test_without_an_adapter_nothing_is_written(folders: dict[str, Path], tmp_path: Path) -> None:
    """A model that is trained whole has a folder as before."""
    lora.write_adapter(loaded(folders["tied"]), str(folders["tied"]), whole, SingleRank(), tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_state_knows_its_adapter_and_its_base(folders: dict[str, Path]) -> None:
    """Rank, alpha, targets and the base weights are facts of a state, the number of steps and A are not."""
    spec = spec_of(folders["tied"])
    facts = lora.identity(adapted(folders["tied"]), spec.lora)

    assert facts == lora.identity(with_random_b(adapted(folders["tied"], seed=4)), spec.lora)
    assert facts != lora.identity(adapted(folders["other"]), spec.lora)
    for changed in ({"rank": 3}, {"alpha": 1.0}, {"targets": ("q_proj",)}):
        assert (
            facts["lora"] != lora.identity(adapted(folders["tied"]), spec_of(folders["tied"], **changed).lora)["lora"]
        )
    assert lora.identity(loaded(folders["tied"]), None) == {}


@pytest.mark.parametrize(
    ("which", "targets", "error"),
    [
        ("tied", ("query",), PlanError),
        ("tied", (), PlanError),
        ("tied", ("lm_head",), PlanError),
        ("untied", ("q_proj", "lm_head"), CapabilityError),
        ("tied", ("q_proj", "embed_tokens"), CapabilityError),
        ("moe", ("q_proj", "up_proj"), CapabilityError),
        ("moe", ("q_proj", "gate"), CapabilityError),
    ],
)
def test_what_cannot_have_an_adapter_is_refused(
    folders: dict[str, Path], which: str, targets: tuple[str, ...], error: type[Exception]
) -> None:
    """A name that fits nothing, or weights that are not those of a linear layer: said, not skipped."""
    model = loaded(folders[which])
    before = dict(model.named_parameters()).keys()

    with pytest.raises(error) as raised:
        lora.add_adapters(model, spec_of(folders[which], targets=targets))

    assert getattr(raised.value, "why", "") and getattr(raised.value, "fix", "")
    assert dict(model.named_parameters()).keys() == before


def test_rank_zero_and_a_value_head_are_refused(folders: dict[str, Path]) -> None:
    """An adapter has rows, and a new value head would stay zero if only adapters were trained."""
    model = loaded(folders["tied"])

    with pytest.raises(WrongType):
        lora.add_adapters(model, spec_of(folders["tied"], rank=0))
    with pytest.raises(CapabilityError):
        lora.add_adapters(model, spec_of(folders["tied"], head=Head.VALUE))


def test_attention_of_a_mixture_of_experts_can_have_an_adapter(folders: dict[str, Path]) -> None:
    """Only experts are fused; the layers around them are linear, and fused experts are sent as before."""
    model = with_random_b(adapted(folders["moe"], targets=("q_proj", "o_proj")))

    sent = {name: t for part in FolderWeights(model, whole).wholes(torch.float32) for name, t in part.items()}

    stored = load_file(folders["moe"] / "model.safetensors")
    assert sent.keys() == stored.keys()
    assert {name for name in stored if not torch.equal(stored[name], sent[name])} == {
        name for name in stored if name.endswith(("q_proj.weight", "o_proj.weight"))
    }
