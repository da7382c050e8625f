"""Tokenizers of policies of today: bytes for letters, more than 65,536 ids, an end of a turn that ends nothing else.

Knows: where their ids lie, and how one of them writes conversations; the other one has no chat template; what a policy
says in them.
Does not know: who encodes what.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from areal_conformance.benches.workflow import generation
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation

FIRST_ID = 70_000
"""Of the byte tokens; those below are never written."""
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{{ part['text'] or '' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SAID = (" no é\n", "stab", "ü", "\non ")
_MERGED = (("a", "b"), ("b", "a"), ("s", "t"), ("o", "n"))


@functools.cache
def chat_tokenizer() -> Any:
    """Return one whose template is ChatML and whose end token ends a turn. Any: transformers is not typed here."""
    made = _byte_level(eos_token=END_OF_TURN, pad_token=END_OF_TEXT, additional_special_tokens=["<|im_start|>"])
    made.chat_template = _CHATML
    return made


@functools.cache
def base_tokenizer() -> Any:
    """Return one without a chat template, and with one special token for every purpose. Any: as above."""
    return _byte_level(eos_token=END_OF_TEXT, bos_token=END_OF_TEXT)


def said(tokenizer: Any, turn: int, stop: StopReason) -> Generation:
    """Return an output in the bytes of a tokenizer, with its end, or cut within a letter. Any: as above."""
    ids = tokenizer.encode(_SAID[turn % len(_SAID)], add_special_tokens=False)
    ids = [*ids, tokenizer.eos_token_id] if stop is StopReason.STOP else [*ids, *tokenizer.encode("é")][:-1]
    return generation(turn, length=len(ids), stop=stop, output_ids=ids)


def moved(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row whose token ids, if it has any, are ones that 16 bits do not hold. Any: the data set decides."""
    return {**row, "input_ids": [FIRST_ID + one for one in row["input_ids"]]} if "input_ids" in row else row


def _byte_level(**special: Any) -> Any:  # Any: as transformers has it
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*(f"<unused {number}>" for number in range(FIRST_ID)), *letters, *("".join(pair) for pair in _MERGED)]
    model = BPE({name: number for number, name in enumerate(names)}, list(_MERGED), fuse_unk=False)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
