"""Only the model that is served is imported, and never less than it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal_sglang.inside.models import others


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of three modules."""
    made = tmp_path / "models"
    made.mkdir()
    for name in ("llama", "qwen3", "qwen3_moe"):
        known = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}[name]
        (made / f"{name}.py").write_text(f"class {known}ForCausalLM(nn.Module): ...\n")
    return made


def model(tmp_path: Path, architecture: str) -> str:
    """Return a model folder of that architecture."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return str(tmp_path)


def test_modules_of_other_models_are_passed_over(folder: Path, tmp_path: Path) -> None:
    """A name that begins another is another."""
    assert others(model(tmp_path, "Qwen3ForCausalLM"), folder) == "llama,qwen3_moe"


def test_a_model_no_module_names_passes_over_none(folder: Path, tmp_path: Path) -> None:
    """SGLang then serves it through transformers, or says that it cannot."""
    assert others(model(tmp_path, "NovelForCausalLM"), folder) == ""


def test_a_folder_without_config_passes_over_none(folder: Path, tmp_path: Path) -> None:
    """The server says what is wrong with it."""
    assert others(str(tmp_path / "nothing"), folder) == ""
