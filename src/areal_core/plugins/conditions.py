"""The conditions of `when(...)` claims: `device == cuda`, `device != cpu`, `device in (cuda, npu)`, joined by `and`.

Knows: a grammar of three comparisons over names and words.
Does not know: what the names mean; the caller supplies the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from areal_core.contract.errors import ManifestError

_COMPARISON = re.compile(r"\s*(?P<name>[a-z_][\w.]*)\s*(?P<op>==|!=|in\b)\s*(?P<rest>.+?)\s*\Z")
_WORDS = re.compile(r"\(\s*[\w.\-]+(?:\s*,\s*[\w.\-]+)*\s*,?\s*\)\Z")
_WORD = re.compile(r"[\w.\-]+\Z")


def holds(condition: str, facts: Mapping[str, str]) -> bool:
    """Tell whether every comparison is true of the facts; a name without a fact counts as true.

    Raises:
        ManifestError: the condition is not of this grammar.
    """
    return all(test(facts) for test in parse(condition))


def parse(condition: str) -> list[Callable[[Mapping[str, str]], bool]]:
    """Return one test per comparison of a condition, left to right.

    Raises:
        ManifestError: the condition is not of this grammar.
    """
    return [_comparison(part, condition) for part in re.split(r"\band\b", condition)]


def _comparison(part: str, condition: str) -> Callable[[Mapping[str, str]], bool]:
    match = _COMPARISON.match(part)
    if match is None:
        raise _malformed(condition)
    name, op, rest = match["name"], match["op"], match["rest"]
    if not (_WORDS if op == "in" else _WORD).match(rest):
        raise _malformed(condition)
    words = {word.strip() for word in rest.strip("()").split(",") if word.strip()}
    return lambda facts: name not in facts or (facts[name] in words) is (op != "!=")


def _malformed(condition: str) -> ManifestError:
    return ManifestError(
        f"condition {condition!r} cannot be read",
        why="a condition compares a name with words",
        fix="write 'device == cuda', 'device != cpu' or 'device in (cuda, npu)', joined by 'and'",
    )
