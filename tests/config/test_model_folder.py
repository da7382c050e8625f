"""A model folder is judged by its own files, before anything is loaded."""

from __future__ import annotations

import pytest
from safetensors.numpy import load_file, save_file

from areal_core.config.model_folder import inspect_model
from areal_core.contract.errors import ModelError

from .conftest import MakeFolder


def test_a_good_folder_tells_what_a_plan_needs(make_folder: MakeFolder) -> None:
    """Architecture, context, vocabulary, stored parameters, tokenizer."""
    found = inspect_model(str(make_folder()))

    assert (found.architecture, found.context_length, found.vocab_size) == ("Qwen3ForCausalLM", 256, 31)
    assert (found.num_parameters, found.has_tokenizer) == (32, True)


def test_the_text_part_of_a_multimodal_model_counts(make_folder: MakeFolder) -> None:
    """Sizes stand under `text_config` there."""
    found = inspect_model(str(make_folder(text_config={"max_position_embeddings": 64, "vocab_size": 9})))

    assert (found.context_length, found.vocab_size) == (64, 9)


def test_a_model_with_images_is_taken_where_images_are(make_folder: MakeFolder) -> None:
    """Engines that serve take it, if it has a vision part; what trains does not."""
    vision = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {}}
    folder = str(make_folder(**vision))

    assert inspect_model(folder, images=True).architecture == "Qwen2_5_VLForConditionalGeneration"
    with pytest.raises(ModelError, match="holds no causal language model"):
        inspect_model(folder)


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_a_missing_folder_is_named(path: str) -> None:
    """No path and a wrong one are two messages."""
    with pytest.raises(ModelError, match="no model given" if not path else "'nowhere' does not exist") as caught:
        inspect_model(path)

    assert "model.path" in caught.value.fix


def test_another_kind_of_model_is_refused_by_its_architecture(make_folder: MakeFolder) -> None:
    """What config.json names stands in the message."""
    folder = make_folder(architectures=["BertForMaskedLM"])

    with pytest.raises(ModelError, match=r"holds no causal language model(.|\n)*BertForMaskedLM"):
        inspect_model(str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "has no config.json"), ("{", "cannot be read"), ("[]", "cannot be read(.|\n)*must hold a json object")],
)
def test_a_broken_config_is_named(make_folder: MakeFolder, text: str | None, message: str) -> None:
    """Missing, torn, or not an object."""
    folder = make_folder()
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)

    with pytest.raises(ModelError, match=message):
        inspect_model(str(folder))


def test_a_folder_of_pickles_is_refused(make_folder: MakeFolder) -> None:
    """The fix says how to convert them."""
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelError, match=r"has no \*\.safetensors(.|\n)*save_pretrained"):
        inspect_model(str(folder))


@pytest.mark.parametrize("keep", [0, 7, 20, -1])
def test_torn_weights_are_named_with_both_sizes(make_folder: MakeFolder, keep: int) -> None:
    """Cut in the length, in the header, and in the last tensor."""
    file = make_folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])

    with pytest.raises(ModelError, match=rf"{file} is not a complete safetensors file(.|\n)*copy it again"):
        inspect_model(str(file.parent))


@pytest.mark.parametrize("header", ["{", "[]", '{"a": {}}', '{"a": {"shape": 3, "data_offsets": [0, 4]}}'])
def test_a_header_of_something_else_is_the_same_error(make_folder: MakeFolder, header: str) -> None:
    """Whatever the bytes say, nothing but ModelError comes out."""
    file = make_folder() / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(64))

    with pytest.raises(ModelError, match="is not a complete safetensors file"):
        inspect_model(str(file.parent))


def test_shards_are_counted_together(make_folder: MakeFolder) -> None:
    """Every safetensors file of the folder belongs to the model."""
    folder = make_folder()
    first = folder / "model.safetensors"
    tensors = {f"second.{name}": tensor for name, tensor in load_file(first).items()}
    save_file(tensors, folder / "second.safetensors")

    assert inspect_model(str(folder)).num_parameters == 64
