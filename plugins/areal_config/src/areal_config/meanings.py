"""What the fields of an attrs class and the members of an enumeration mean: the strings below them.

Knows: docstrings, of a class and of the classes it inherits from.
Does not know: types or values (`limits`, `schema`).
"""

from __future__ import annotations

import re
from functools import cache

import docstring_parser


@cache
def meanings(cls: type) -> dict[str, str]:
    """Return the meaning of each field or member that has one, on one line."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        if owner.__module__ not in ("enum", "builtins"):
            parameters = docstring_parser.parse_from_object(owner).params
            found |= {one.arg_name: _one_line(one.description) for one in parameters if one.description}
    return found


def about(cls: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return _one_line((cls.__doc__ or "").strip().partition("\n\n")[0])


def first_sentence(text: str) -> str:
    """Return a text up to the first full stop that ends a sentence, without the stop."""
    return text.partition(". ")[0].removesuffix(".")


def _one_line(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))  # as a yaml has it
