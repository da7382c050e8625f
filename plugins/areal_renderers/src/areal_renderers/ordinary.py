"""Text to tokens, where what somebody wrote can never become a control token.

A content that holds the text of a control token, such as `<|im_end|>`, would forge a turn if it were encoded as that
token. Here it is marked before the chat template sees it, and the text is cut at the mark before it is encoded: the
two halves are ordinary tokens which read the same.

Knows: the control tokens of a tokenizer, and how text is encoded around marks.
Does not know: messages or templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from areal_core.contract.errors import DatasetError

CUT = "\ufdd0"
"""Marks where a control token's text is cut: a code point that Unicode keeps free for such uses."""
_KEPT = "\ufdd1"
"""Follows a `CUT` that somebody wrote."""
_MARK = re.compile(f"{CUT}(?!{_KEPT})")
_BARS = ("|", "\uff5c")


class Encoder:
    """The text side of one tokenizer. Any: a Hugging Face one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.specials: dict[str, int] = {
            str(added): int(number) for number, added in getattr(tokenizer, "added_tokens_decoder", {}).items()
        }
        """Text -> id of every token that was added to the vocabulary."""
        flagged = {str(added) for added in tokenizer.added_tokens_decoder.values() if added.special}
        self.controls = frozenset(
            text for text in self.specials if len(text) > 1 and (text in flagged or any(bar in text for bar in _BARS))
        )
        """Texts that no content may become: special tokens, and such as are written with bars. The others, `<think>`
        or `<tool_call>`, are words that prompts explain to a model; they become tokens wherever they stand."""
        longest = sorted(self.controls, key=len, reverse=True)
        self._forged = re.compile("|".join(map(re.escape, longest)) if longest else r"(?!)")
        self._genuine = frozenset(self.specials[text] for text in self.controls)

    def written(self, text: str) -> str:
        """Return somebody's text with marks where it would become a control token."""
        return self._forged.sub(_cut, kept(text))

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a marked text; nothing is added around it.

        Raises:
            DatasetError: it is no text: half of a pair of surrogates.
        """
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise DatasetError("a message cannot be encoded", why=f"it is not Unicode: {exc.reason}") from exc
        found: list[int] = []
        for piece in _MARK.split(text):
            found += self._tokenizer.encode(piece.replace(CUT + _KEPT, CUT), add_special_tokens=False)
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def said(self, ids: Sequence[int]) -> str:
        """Return the text of an output with marks where ordinary tokens spell a control token."""
        text = self.text(ids)
        forged: list[bool] = []
        for genuine, run in groupby(ids, self._genuine.__contains__):
            tokens = list(run)
            forged += [False] * len(tokens) if genuine else [True] * len(self._forged.findall(self.text(tokens)))
        if CUT not in text and not any(forged):
            return text
        order = iter(forged)
        return self._forged.sub(lambda match: _cut(match) if next(order, True) else match[0], kept(text))


def plain(text: str) -> str:
    """Return a marked text as it was before."""
    return _MARK.sub("", text).replace(CUT + _KEPT, CUT)


def kept(text: str) -> str:
    """Return a text without marks as a marked one: what looks like a mark in it is none."""
    return text.replace(CUT, CUT + _KEPT)


def _cut(match: re.Match[str]) -> str:
    return match[0][0] + CUT + match[0][1:]
