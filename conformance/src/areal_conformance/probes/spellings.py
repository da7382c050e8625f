"""Tokenizers unlike the suite's own: letters of several tokens, tokens of several letters, spaces that belong to words.

Knows: a byte-level one and one as SentencePiece writes, of 64 ids, the first three pad, end and unknown.
Does not know: who decodes with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from attrs import frozen
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

_SPECIAL = ("<pad>", "<eos>", "<unk>")
_SIZE = 64
_LETTERS_OF_TWO = 6
Pairs = Sequence[tuple[int, int]]
"""Ids that an output has one after the other: together they are to be a letter. No id is in two of them."""
_LEADS = tuple(range(0xC3, 0xC3 + _LETTERS_OF_TWO))
"""Bytes that begin a letter of two."""
_CONTINUED = tuple(range(0xA1, 0xA1 + _LETTERS_OF_TWO))
"""Bytes that end one, each after any of those."""


_SPACE = "\u0120"
"""How a byte-level vocabulary writes a space."""
_WORDS = ("ab", "c", "k", "l")
_LONG = (*(f"{_SPACE}{one}" for one in _WORDS), "cde", "nop", "fg", "hi", "jk", "lm", "qr", "st", "uv", "xyz")
"""Tokens of several letters."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MORE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _fast(tokenizer: Any, **more: Any) -> Any:  # Any: transformers is not typed here
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        **more,
    )


def _numbered(pairs: Pairs, bytes_: Sequence[str], others: Iterable[str]) -> dict[str, int]:
    """Give the two bytes of the first letters to these pairs of ids, and the other tokens to the ids left."""
    placed = dict(zip(_SPECIAL, range(len(_SPECIAL)), strict=True))
    for number, (first, second) in enumerate(pairs[:_LETTERS_OF_TWO]):
        placed |= {bytes_[number]: first, bytes_[_LETTERS_OF_TWO + number]: second}
    left = (number for number in range(_SIZE) if number not in {*placed.values()})
    rest = [token for token in (*bytes_, *others) if token not in placed]
    return {**placed, **dict(zip(rest, left, strict=False))}


def byte_level(pairs: Pairs) -> Any:
    """Return a byte-level tokenizer: of two tokens are Latin and Greek letters, of three letters is a token."""
    bytes_ = tuple(map(chr, (*_LEADS, *_CONTINUED)))  # byte-level vocabularies write these as themselves
    made = tokenizers.Tokenizer(BPE(_numbered(pairs, bytes_, (*_LETTERS, _SPACE, *_LONG, *_MORE)), []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return _fast(made)


@frozen
class InOldFiles:
    """A byte-level tokenizer in the files that were written before tokenizer.json was, and in no others."""

    fast: Any  # Any: transformers is not typed here

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return the text of ids. Any: transformers' own options."""
        return str(self.fast.decode(ids, **options))

    def save_pretrained(self, folder: Path) -> None:
        """Write it into a folder."""
        named = {f"{kind}_token": token for kind, token in zip(("pad", "eos", "unk"), _SPECIAL, strict=True)}
        config = {**named, "bos_token": "<eos>", "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
        config["clean_up_tokenization_spaces"] = False
        (folder / "vocab.json").write_text(json.dumps(self.fast.get_vocab(), ensure_ascii=False), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def old_files(pairs: Pairs) -> Any:
    """Return the byte-level one in the files vocab.json and merges.txt."""
    return InOldFiles(byte_level(pairs))


def pieces(pairs: Pairs) -> Any:
    """Return one as SentencePiece writes: words carry the space before them, other letters are two byte tokens."""
    bytes_ = (*(f"<0x{byte:02X}>" for byte in (*_LEADS, *_CONTINUED)),)
    words = ("\u2581ab", "\u2581c", "de", "fgh", "\u2581", *(f"\u2581{one}" for one in "klmnopqr"))
    words = (*words, *_LETTERS)
    made = tokenizers.Tokenizer(WordLevel(_numbered(pairs, bytes_, (*words, *_MORE)), unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _fast(made)


SPELLINGS: Mapping[str, Callable[[Pairs], Any]] = MappingProxyType(
    {"byte_level": byte_level, "pieces": pieces, "old_files": old_files}
)
"""Kinds of tokenizer, by name. Any: transformers is not typed here."""
