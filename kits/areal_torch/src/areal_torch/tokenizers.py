"""A character tokenizer: one id per character, for tasks and tests that need no download.

Knows: how to build and save one as an ordinary Hugging Face fast tokenizer.
Does not know: which model it sits beside, or what the text means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
SPECIAL_TOKENS = (PAD, EOS, UNK)
"""Ids 0, 1, 2 of every character tokenizer."""

SPELL_CHARACTERS = "abcdefghijklmnopqrstuvwxyz>-"
"""What the spelling tasks are written in; with the special tokens 31 ids."""


def character_tokenizer(characters: str = SPELL_CHARACTERS) -> Any:
    """Return a `PreTrainedTokenizerFast` whose ids are pad, eos, unk, then the characters in order.

    Encoding adds no special token; decoding joins characters without cleaning up spaces, so
    encode and decode are inverse on the given characters. Any other character becomes `<unk>`.
    Any: transformers is not typed here.

    Raises:
        ValueError: a character appears twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if len(set(characters)) != len(characters):
        raise ValueError(f"a character appears twice in {characters!r}")
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def save_character_tokenizer(path: Path, characters: str = SPELL_CHARACTERS) -> Path:
    """Write a character tokenizer to a folder `AutoTokenizer` can load; return the folder."""
    character_tokenizer(characters).save_pretrained(path)
    return path
