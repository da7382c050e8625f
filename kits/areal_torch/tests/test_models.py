"""Tokenizers and tiny models are ordinary Hugging Face folders that transformers loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForCausalLM, AutoTokenizer

from areal_tasks.tiny import make_spell_model
from areal_torch.testing.models import IMAGE_SIDE, IMAGE_TOKENS, make_tiny_model
from areal_torch.testing.serving import model_of
from areal_torch.tokenizers import SPECIAL_TOKENS, SPELL_CHARACTERS, character_tokenizer, save_character_tokenizer

TOKENIZER = character_tokenizer()


@given(st.text(alphabet=SPELL_CHARACTERS, max_size=40))
def test_decoding_undoes_encoding(text: str) -> None:
    """One id per character, no special token added, nothing cleaned up."""
    ids = TOKENIZER.encode(text)

    assert len(ids) == len(text)
    assert all(token >= len(SPECIAL_TOKENS) for token in ids)
    assert TOKENIZER.decode(ids) == text


def test_line_breaks_are_characters_too() -> None:
    """Two of them are two tokens, not one unknown piece."""
    tokenizer = character_tokenizer("a\n")

    assert tokenizer.encode("\n\na") == [4, 4, 3]
    assert tokenizer.decode([4, 4, 3]) == "\n\na"


def test_special_tokens_are_dropped_when_asked() -> None:
    """Pad, end and unknown vanish from the text a reward sees."""
    ids = [0, *TOKENIZER.encode("enots"), 1, 0]

    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "enots"
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id) == (0, 1, 2)
    assert TOKENIZER.encode("?") == [2]


def test_a_repeated_character_is_refused() -> None:
    """Two ids for one character would make encoding ambiguous."""
    with pytest.raises(ValueError, match="twice"):
        character_tokenizer("abca")


def test_a_saved_tokenizer_is_the_same_one(tmp_path: Path) -> None:
    """AutoTokenizer gives the same ids back."""
    loaded = AutoTokenizer.from_pretrained(save_character_tokenizer(tmp_path / "tokenizer"))

    assert loaded.encode("stone>") == TOKENIZER.encode("stone>")
    assert loaded.get_vocab() == TOKENIZER.get_vocab()


def test_the_spell_model_has_its_documented_size_and_depends_on_the_seed_only(tmp_path: Path) -> None:
    """101k parameters, tied, end token 1; the caller's random state neither matters nor changes."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    folders = [make_spell_model(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]

    assert 100_000 <= models[0].num_parameters() <= 102_000
    assert models[0].config.tie_word_embeddings
    assert models[0].generation_config.eos_token_id == 1
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (model.model.embed_tokens.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "qwen2_5_vl"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_tiny_model_says_something_and_every_token_is_a_character(tmp_path: Path, kind: str, tied: bool) -> None:
    """Logits are not flat, every id of the vocabulary decodes, and all parameters differ from neutral values."""
    path = make_tiny_model(tmp_path / kind, kind=kind, tied=tied, seed=3)
    model, tokenizer = model_of(path, torch.float32), AutoTokenizer.from_pretrained(path)
    ids = tokenizer.encode("stone> 1\nab")

    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits.log_softmax(-1)

    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    assert 0.4 < float(entropy) / float(torch.tensor(64.0).log()) < 0.9
    assert tokenizer.decode(ids) == "stone> 1\nab"
    assert len({tokenizer.decode([token]) for token in range(64)}) == 64
    assert model.config.tie_word_embeddings == tied
    for name, parameter in model.named_parameters():
        assert parameter.std() > 0.05, f"{name} is constant"


def test_a_tiny_model_with_images_sees_them(tmp_path: Path) -> None:
    """Its processor makes as many tokens of an image as it is wide and high, and the model tells images apart."""
    path = make_tiny_model(tmp_path / "model", kind="qwen2_5_vl")
    model, tokenizer = model_of(path, torch.float32), AutoTokenizer.from_pretrained(path)
    processor = AutoImageProcessor.from_pretrained(path, backend="pil")
    start, end, placeholder, _ = tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
    ids = torch.tensor([[5, start, *[placeholder] * 6, end, 7]])

    seen = []
    for shade in (0, 255):
        image = Image.new("RGB", (3 * IMAGE_SIDE, 2 * IMAGE_SIDE), (shade, 90, 200))
        pixels = processor(images=[image], return_tensors="pt")
        with torch.no_grad():
            seen.append(model(input_ids=ids, mm_token_type_ids=(ids == placeholder).long(), **pixels).logits[0, -1])

    assert (start, model.config.image_token_id) == (64, placeholder)
    assert float((seen[0] - seen[1]).abs().max()) > 0.01


def test_a_vocabulary_may_be_as_large_as_that_of_a_real_model(tmp_path: Path) -> None:
    """Every id has a character of its own, none of them half of one."""
    path = make_tiny_model(tmp_path, vocab_size=151936, hidden=8, layers=1, heads=1, kv_heads=1)

    tokenizer = AutoTokenizer.from_pretrained(path)

    assert len(tokenizer) == 151936
    assert tokenizer.encode(tokenizer.decode([34000, 151935])) == [34000, 151935]
