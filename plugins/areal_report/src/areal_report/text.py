"""Text of others, made safe to show: completions, errors and names may hold anything.

Knows: which characters a terminal or a page would obey rather than show.
Does not know: where a text comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

MAX_TEXT = 6000
"""Characters shown of one text; a longer one loses its middle."""


def printable(text: object) -> str:
    """Return a text in which everything that is obeyed, not shown, is spelt out: escapes, marks of direction, ..."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(text))


def html(text: object) -> str:
    """Return a text for a page: nothing in it is markup, and it has an end."""
    return escape(shortened(printable(text)))


def shortened(text: str, most: int = MAX_TEXT) -> str:
    """Return both ends of a long text, and how much is missing between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def duration(seconds: float) -> str:
    """Return seconds for people: 12.3 s, 4 min 05 s, 3 h 07 min, 2 d 04 h."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small:02d} {smaller}"
    raise AssertionError


def number(value: object, form: str | Callable[[float], str] = ".3g") -> str | None:
    """Return a number as text, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return form(value) if callable(form) else format(value, form)
