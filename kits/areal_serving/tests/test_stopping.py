"""Stop strings are found at the token that completes them."""

from __future__ import annotations

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from areal_serving.stopping import StopStrings


@frozen
class Bytes:
    """A tokenizer whose tokens are bytes, as in the rare tokens of real byte-level tokenizers."""

    def decode(self, token_ids, *, skip_special_tokens=False):
        return bytes(token_ids).decode("utf-8", errors="replace")


def place(text, strings, **options):
    """Return after how many bytes of `text` the watch says stop, or None."""
    watch = StopStrings(Bytes(), strings)
    return next((n for n, byte in enumerate(text.encode(), 1) if watch.push(byte, **options)), None)


@pytest.mark.parametrize(
    ("text", "strings", "expected"),
    [
        ("abc", ("c",), 3),
        ("aabaab", ("ab",), 3),
        ("a\u20acb", ("\u20ac",), 4),
        ("xyz", ("q",), None),
        ("abcd", ("d", "bc"), 3),
    ],
)
def test_a_string_is_found_at_its_last_byte(text, strings, expected):
    """Across tokens, inside characters of several bytes, and for the earliest of several strings."""
    assert place(text, strings) == expected


@given(st.text("ab\u20ac", max_size=20), st.lists(st.text("ab\u20ac", min_size=1, max_size=4), min_size=1, max_size=3))
def test_it_agrees_with_searching_the_whole_text(text, strings):
    """Incremental search finds the first prefix of the text that contains a string."""
    prefixes = (text[:n] for n in range(len(text) + 1))
    whole = next((p for p in prefixes if any(string in p for string in strings)), None)
    assert place(text, strings) == (None if whole is None else len(whole.encode()))


def test_a_string_completed_before_the_minimum_length_does_not_count_later():
    """It ends the output only when completed where it may stop."""
    watch = StopStrings(Bytes(), ("ab",))
    assert [watch.push(byte, may_stop=n > 3) for n, byte in enumerate(b"abbbab")] == [False] * 5 + [True]
