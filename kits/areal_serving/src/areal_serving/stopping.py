"""Find the token that completes a stop string, decoding as little as possible.

Knows: incremental decoding of one output, and a tail long enough to hold any stop string.
Does not know: end tokens and budgets; those are array comparisons in `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from areal_core.contract.workflow import Tokenizer

INCOMPLETE = "\ufffd"
"""What a tokenizer decodes half a character to."""
CONTEXT_TOKENS = 4
"""Tokens decoded again before the new ones, because a tokenizer may join neighbours (spaces, bytes)."""


class StopStrings:
    """Watches one output. `push` every token in order; it tells when a stop string is complete.

    Example: StopStrings(tokenizer, ("\\n", "</answer>")).push(198) -> True
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._keep = max(len(string) for string in strings) - 1
        self._tail = ""
        self._context: list[int] = []
        self._fresh: list[int] = []

    def push(self, token: int, *, may_stop: bool = True) -> bool:
        """Take one more output token; return whether it completes a stop string.

        A string completed while `may_stop` is False (minimum length not reached) does not count later either.
        """
        self._fresh.append(token)
        before = self._decode(self._context)
        after = self._decode(self._context + self._fresh)
        if after.endswith(INCOMPLETE):
            return False
        self._tail += after[len(before) :]
        self._context = (self._context + self._fresh)[-CONTEXT_TOKENS:]
        self._fresh = []
        found = any(string in self._tail for string in self._strings)
        self._tail = "" if found else self._tail[max(0, len(self._tail) - self._keep) :]
        return found and may_stop

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
