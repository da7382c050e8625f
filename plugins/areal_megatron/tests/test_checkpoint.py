"""The checkpoint format `megatron`: written and read by areal, and by Megatron-Core itself."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_core.contract.errors import CheckpointError
from areal_megatron.checkpoint import MegatronFolder
from areal_torch.conversion.convert import Converted, convert
from areal_torch.conversion.format import Format
from areal_torch.conversion.formats import detected, formats
from areal_torch.conversion.hf import HFFolder
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.ranks import run_ranks

KINDS = {"qwen3": "qwen3", "qwen2": "qwen2", "moe": "qwen3_moe"}
SCRIPT = Path(__file__).with_name("checkpoint_ranks.py")


def run(source: Path, target: Path, form: Format, *, like: Path | None = None) -> Converted:
    given = detected(source, formats())
    return convert(source, given.open(source), target, form, like=like)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make models and write each as Megatron has it."""
    path = tmp_path_factory.mktemp("checkpoints")
    for name, kind in KINDS.items():
        make_tiny_model(path / name, kind=kind, vocab_size=66, tied=name == "qwen3")
        run(path / name, path / f"{name}-written", MegatronFolder())
    return path


@pytest.mark.parametrize("model", KINDS)
def test_there_and_back_is_bit_for_bit(model: str, written: Path, tmp_path: Path) -> None:
    """A model folder comes back as it was, found by its description."""
    assert detected(written / f"{model}-written", formats()).name == "megatron"
    run(written / f"{model}-written", tmp_path / "hf", HFFolder())

    _assert_same(written / model, tmp_path / "hf")


def test_layers_that_are_alike_lie_in_one_tensor(written: Path) -> None:
    """As Megatron has them: a first dimension of layers, and of experts behind it."""
    from areal_torch.conversion.dcp import Folder

    dense = {info.name: info.shape for info in Folder(written / "qwen2-written").tensors()}
    mixed = {info.name: info.shape for info in Folder(written / "moe-written").tensors()}

    assert dense["decoder.layers.self_attention.linear_qkv.weight"] == (2, 128, 64)
    assert dense["decoder.layers.mlp.linear_fc1.layer_norm_weight"] == (2, 64)
    assert mixed["decoder.layers.mlp.experts.experts.linear_fc1.weight"] == (2, 4, 128, 64)
    assert mixed["decoder.layers.pre_mlp_layernorm.weight"] == (2, 64)


def test_a_vocabulary_that_was_filled_up_is_cut_again(written: Path, tmp_path: Path) -> None:
    """Megatron fills it up to a multiple; config.json tells what the model has."""
    shutil.copytree(written / "qwen2-written", tmp_path / "padded")
    config = json.loads((tmp_path / "padded" / "config.json").read_text())
    (tmp_path / "padded" / "config.json").write_text(json.dumps({**config, "vocab_size": 60}))
    run(tmp_path / "padded", tmp_path / "hf", HFFolder())

    whole = load_file(written / "qwen2" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(load_file(tmp_path / "hf" / "model.safetensors")["lm_head.weight"], whole[:60])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "has the shape"),
        ({"intermediate_size": 96}, "has the shape"),
        ({"vocab_size": 70}, "has the shape"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "has more than the model"),
        ({"model_type": "qwen3", "head_dim": 16}, r"has no decoder\.layers\.0\.self_attention\.q_layernorm"),
    ],
)
def test_another_models_config_is_refused(changes: dict[str, object], says: str, written: Path, tmp_path: Path) -> None:
    """Before anything is written."""
    shutil.copytree(written / "qwen2-written", tmp_path / "wrong")
    config = json.loads((tmp_path / "wrong" / "config.json").read_text())
    (tmp_path / "wrong" / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(CheckpointError, match=says):
        MegatronFolder().open(tmp_path / "wrong")


def test_a_checkpoint_without_config_says_what_to_do(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "qwen2-written", tmp_path / "bare")
    (tmp_path / "bare" / "config.json").unlink()

    with pytest.raises(CheckpointError, match=r"copy config\.json of the model into the folder"):
        MegatronFolder().open(tmp_path / "bare")


def test_tensors_of_another_model_are_not_written(written: Path, tmp_path: Path) -> None:
    """Those of a qwen2 are no qwen3's."""
    with pytest.raises(CheckpointError, match="not those of the model"):
        run(written / "qwen2", tmp_path / "out", MegatronFolder(), like=written / "qwen3")


def test_no_code_of_a_checkpoint_runs(written: Path, tmp_path: Path) -> None:
    """Neither of its index nor of common.pt, which nobody opens."""
    shutil.copytree(written / "qwen2-written", tmp_path / "trap")
    ran = tmp_path / "ran"
    trap = pickle.dumps(_Trap(str(ran)))
    (tmp_path / "trap" / "common.pt").write_bytes(trap)
    run(tmp_path / "trap", tmp_path / "hf", HFFolder())
    (tmp_path / "trap" / ".metadata").write_bytes(trap)

    with pytest.raises(CheckpointError, match="not part of an index"):
        MegatronFolder().open(tmp_path / "trap")
    assert not ran.exists()


class _Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, (self.path,)


@pytest.mark.slow
def test_megatron_reads_what_areal_wrote_and_the_other_way_round(written: Path, tmp_path: Path) -> None:
    """On two ranks that share tensors, layers or experts: its own load and its own save."""
    run_ranks(SCRIPT, written, 2, limit_s=800)
    for case in ("qwen3-t2", "qwen2-p2", "moe-d2e2"):
        model = case.split("-")[0]
        for rank in range(2):
            loaded = json.loads((written / f"loaded-{case}-{rank}.json").read_text())
            assert loaded, case
            assert all(loaded.values()), f"{case}: {[name for name, equal in loaded.items() if not equal]}"
        saved = written / f"{case}-saved"
        shutil.copyfile(written / model / "config.json", saved / "config.json")
        run(saved, tmp_path / case, HFFolder())
        _assert_same(written / model, tmp_path / case)


def _assert_same(expected: Path, actual: Path) -> None:
    left, right = load_file(expected / "model.safetensors"), load_file(actual / "model.safetensors")
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name
