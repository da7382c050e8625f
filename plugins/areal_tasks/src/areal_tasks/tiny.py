"""The quickstart's model before it has learnt anything: 101k parameters over 31 characters.

Knows: its shape, and how to write it as an ordinary Hugging Face folder.
Does not know: how it is trained.
"""

from __future__ import annotations

from pathlib import Path

from areal_torch.tokenizers import SPECIAL_TOKENS, SPELL_CHARACTERS, save_character_tokenizer

MAX_POSITION = 256


def make_spell_model(path: Path, seed: int) -> Path:
    """Write the model with random weights of `seed`, and its character tokenizer; return `path`."""
    make_qwen3(path, seed, vocab_size=len(SPECIAL_TOKENS) + len(SPELL_CHARACTERS), max_position=MAX_POSITION)
    return save_character_tokenizer(path)


def make_qwen3(path: Path, seed: int, *, vocab_size: int, max_position: int) -> None:
    """Write a float32 Qwen3 with random weights of `seed`, whose tokens 0 and 1 are padding and end.

    Hidden 64, 2 layers, 4 heads of 32 (engines' CPU kernels refuse narrower ones), 2 key-value heads, intermediate
    128, tied embeddings. The caller's random state is left as it was. Takes a few seconds, nearly all of it the
    import of transformers.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_position,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(path)
