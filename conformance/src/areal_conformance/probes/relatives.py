"""Tokenizers that look like another one and are not: of its class and its size, with other words, ends or a template.

Knows: how the file of a fast tokenizer is changed.
Does not know: renderers, or any model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer


def relatives(tokenizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield tokenizers with what is other about them. Any: transformers' own."""
    if tokenizer.chat_template:
        spoken = copy.deepcopy(tokenizer)
        spoken.chat_template = "{{- 'lumen ' }}" + tokenizer.chat_template
        yield "another template", spoken
        silent = copy.deepcopy(tokenizer)
        silent.chat_template = "{{- raise_exception('never') }}"
        yield "a template that refuses everything", silent
    ends = [str(one) for one in tokenizer.added_tokens_decoder.values() if one.special]
    other = next((one for one in ends if one not in (tokenizer.eos_token, tokenizer.bos_token)), None)
    if other is not None and tokenizer.eos_token:
        ending = copy.deepcopy(tokenizer)
        ending.eos_token = other
        yield "another end", ending
    yield from _renumbered(tokenizer, ends)


def _renumbered(tokenizer: Any, controls: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield tokenizers in which two letters, and two control tokens, have each other's numbers."""
    if not getattr(tokenizer, "is_fast", False):
        return
    told = json.loads(tokenizer.backend_tokenizer.to_str())
    words = told["model"].get("vocab")
    if not isinstance(words, dict) or not {"a", "b"} <= set(words):
        return
    words["a"], words["b"] = words["b"], words["a"]
    yield "letters of other numbers", _with(tokenizer, told)
    words["a"], words["b"] = words["b"], words["a"]
    pair = [one for one in controls if one not in words][-2:]
    if len(pair) == 2:
        exchanged = dict(zip(pair, reversed(pair), strict=True))
        for one in told["added_tokens"]:
            one["content"] = exchanged.get(one["content"], one["content"])
        yield "control tokens of other numbers", _with(tokenizer, told)


def _with(tokenizer: Any, told: dict[str, Any]) -> Any:
    made = copy.deepcopy(tokenizer)  # keeps what its file does not say: template, ends, class
    made._tokenizer = Tokenizer.from_str(json.dumps(told))
    return made
