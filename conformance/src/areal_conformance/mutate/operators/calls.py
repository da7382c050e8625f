"""Calls that are made otherwise: not awaited, with two arguments swapped.

Knows: positions and keywords of arguments.
Does not know: what is called; groups of ranks (`groups`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source

_NO_ORDER = ("isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "TypeVar", "NewType")
"""Whose arguments nobody swaps by mistake: it would fail at once."""
_SYMMETRIC = ("max", "min", "maximum", "minimum", "gcd", "equal")
"""Whose arguments mean the same in whatever order."""
_NAMES = ast.Name | ast.Attribute


def not_awaited(source: Source, node: ast.AST) -> Iterator[Change]:
    """`await f()` becomes `f()`."""
    if isinstance(node, ast.Await):
        yield source.replace(node, f"({source.segment(node.value)})")


def swapped(source: Source, node: ast.AST) -> Iterator[Change]:
    """`f(a, b)` becomes `f(b, a)`, `f(x=a, y=b)` becomes `f(x=b, y=a)`.

    Neighbours among the first three by position; by keyword neighbours that are names or attributes.
    """
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in (_SYMMETRIC if isinstance(node.func, ast.Attribute) else (*_NO_ORDER, *_SYMMETRIC)):
        return
    pairs = list(zip(node.args[:3], node.args[1:3], strict=False))
    for one, next_one in zip(node.keywords, node.keywords[1:], strict=False):
        named = all(keyword.arg and isinstance(keyword.value, _NAMES) for keyword in (one, next_one))
        pairs += [(one.value, next_one.value)] if named else []
    for left, right in pairs:
        first, second = source.segment(left), source.segment(right)
        if first != second and not isinstance(left, ast.GeneratorExp):
            gap = source.text[source.end(left) : source.start(right)].decode()
            yield source.splice(node, source.start(left), source.end(right), second + gap + first)
