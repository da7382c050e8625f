"""PEFT's format, both ways: PEFT loads what is saved, and training goes on with what PEFT saved."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.config.lora import plan_lora
from areal_core.contract.errors import ModelError, PlanError
from areal_core.contract.train import Head, LoraSpec, OptimizerSpec, TrainSpec
from areal_torch import hf, lora
from areal_torch.export import whole
from areal_torch.group import SingleRank
from areal_torch.testing.models import make_tiny_model

peft: Any = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
"""PEFT asks transformers by an old name."""
TARGETS = ("q_proj", "o_proj", "down_proj")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model folder."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "m", hidden=32, tied=False)


def transformers_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def our_model(folder: Path, spec: LoraSpec) -> Any:
    model = hf.load_model(str(folder), hf.load_config(str(folder), Head.CAUSAL_LM), Head.CAUSAL_LM).eval()
    lora.add_adapters(model, TrainSpec(role="actor", model_path=str(folder), lora=spec, optimizer=OptimizerSpec()))
    return model


def randomised(model: Any, word: str) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if word in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(2, 14)[None]
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).logits
    return found


def merged(model: Any, folder: Path) -> Any:
    """Return transformers' own model with what would be saved of ours."""
    plain = transformers_model(folder)
    plain.load_state_dict(dict(lora.merged_tensors(model, whole, torch.float32)), strict=False)
    return plain


def test_peft_loads_what_is_saved(base: Path, tmp_path: Path) -> None:
    """Beside the base it computes what the merged folder computes."""
    ours = randomised(our_model(base, LoraSpec(rank=3, alpha=12.0, targets=TARGETS)), "lora_B")
    lora.write_adapter(ours, str(base), whole, SingleRank(), tmp_path)

    theirs = peft.PeftModel.from_pretrained(transformers_model(base), tmp_path / lora.ADAPTER_FOLDER).eval()

    torch.testing.assert_close(logits(theirs), logits(merged(ours, base)), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(theirs), logits(transformers_model(base)), atol=1e-2)


@pytest.mark.parametrize("scaled", [False, True], ids=["alpha/r", "rank-stabilised"])
def test_training_goes_on_with_what_peft_saved(base: Path, tmp_path: Path, scaled: bool) -> None:
    """Rank, alpha and targets are the folder's; a rank-stabilised scale becomes an alpha."""
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=list(TARGETS), use_rslora=scaled, task_type="CAUSAL_LM", lora_dropout=0.0
    )
    theirs = randomised(peft.get_peft_model(transformers_model(base), config), "lora_B").eval()
    theirs.save_pretrained(tmp_path / "theirs")

    spec = plan_lora("actor", LoraSpec(path=str(tmp_path / "theirs")))
    ours = our_model(base, spec)

    assert (spec.rank, set(spec.targets)) == (4, set(TARGETS))
    assert spec.alpha == (12.0 if scaled else 6.0)
    torch.testing.assert_close(logits(merged(ours, base)), logits(theirs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"init_lora_weights": "gaussian", "lora_dropout": 0.5}, None),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": "all-linear"}, None),
        ({"layers_to_transform": [1]}, "layers_to_transform"),
    ],
    ids=str,
)
def test_an_adapter_that_is_more_than_b_a_is_refused_by_name(
    base: Path, tmp_path: Path, options: dict[str, Any], said: str | None
) -> None:
    """All that PEFT can write and nobody here would train or serve; what it spells out is fine."""
    given = {"r": 4, "lora_alpha": 6, "target_modules": list(TARGETS), "task_type": "CAUSAL_LM", **options}
    peft.get_peft_model(transformers_model(base), peft.LoraConfig(**given)).save_pretrained(tmp_path / "theirs")
    asked = LoraSpec(path=str(tmp_path / "theirs"))

    if said is None:
        assert any(target.endswith("q_proj") for target in plan_lora("actor", asked).targets)
        return
    with pytest.raises(ModelError, match=r"is of another kind") as caught:
        plan_lora("actor", asked)
    assert said in str(caught.value.why)


@pytest.mark.parametrize(
    "entry",
    [
        *({"lora_bias": True}, {"layer_replication": [[0, 2]]}, {"alora_invocation_tokens": [5]}),
        *({"use_qalora": True}, {"kasa_config": {"beta": 1.0}}, {"init_lora_weights": "nobody knows"}),
    ],
)
def test_entries_that_make_another_model_are_refused_by_name(tmp_path: Path, entry: dict[str, Any]) -> None:
    """Also those that few versions of PEFT write."""
    says = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none", **entry}
    (tmp_path / "adapter_config.json").write_text(json.dumps(says))

    with pytest.raises(ModelError, match=r"is of another kind") as caught:
        plan_lora("actor", LoraSpec(path=str(tmp_path)))
    assert next(iter(entry)) in str(caught.value.why)


@pytest.mark.parametrize("entry", [{"r": 0}, {"r": -1}, {"r": 4.0}, {"lora_alpha": True}, {"lora_alpha": math.nan}])
def test_numbers_that_are_none_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    """A rank has a row at least, and a scale is a number."""
    says = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], **entry}
    (tmp_path / "adapter_config.json").write_text(json.dumps(says))

    with pytest.raises(ModelError, match=r"is of another kind"):
        plan_lora("actor", LoraSpec(path=str(tmp_path)))


@pytest.mark.parametrize(("rank", "alpha"), [(2, 0.5), (8, 16 * 8**0.5), (3, 0.7), (7, 0.1), (4, 6.0)])
def test_a_scale_is_written_and_read_to_the_bit(base: Path, tmp_path: Path, rank: int, alpha: float) -> None:
    """An alpha need not be whole, nor a multiple of the rank: a state of the adapter still fits what begins again."""
    ours = our_model(base, LoraSpec(rank=rank, alpha=alpha, targets=TARGETS))
    lora.write_adapter(ours, str(base), whole, SingleRank(), tmp_path)

    again = plan_lora("actor", LoraSpec(path=str(tmp_path / lora.ADAPTER_FOLDER)))

    assert (again.rank, again.alpha, set(again.targets)) == (rank, alpha, set(TARGETS))


def test_a_folder_of_another_model_or_another_rank_is_refused(base: Path, tmp_path: Path) -> None:
    """Before a step is made, with what differs."""
    small = make_tiny_model(tmp_path / "small", hidden=16, tied=False)
    ours = our_model(small, LoraSpec(rank=2, alpha=4.0, targets=TARGETS))
    lora.write_adapter(ours, str(small), whole, SingleRank(), tmp_path)
    path = str(tmp_path / lora.ADAPTER_FOLDER)

    with pytest.raises(ModelError, match="does not fit the model"):
        our_model(base, LoraSpec(rank=2, alpha=4.0, targets=TARGETS, path=path))
    with pytest.raises(PlanError, match=r"actor\.lora\.rank is 8"):
        plan_lora("actor", LoraSpec(rank=8, path=path))
    with pytest.raises(ModelError, match="no adapter folder"):
        plan_lora("actor", LoraSpec(path=str(tmp_path / "nowhere")))
