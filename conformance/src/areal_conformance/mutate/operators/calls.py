"""Calls that are made otherwise: not awaited, with two arguments swapped, to another group of ranks.

Knows: positions of arguments.
Does not know: what is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source

_NO_ORDER = ("isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "TypeVar", "NewType")
"""Whose arguments nobody swaps by mistake: it would fail at once."""
_SYMMETRIC = ("max", "min", "maximum", "minimum", "gcd", "equal")
"""Whose arguments mean the same in whatever order."""
_GROUPS = ("group", "process_group", "pg")


def not_awaited(source: Source, node: ast.AST) -> Iterator[Change]:
    """`await f()` becomes `f()`."""
    if isinstance(node, ast.Await):
        yield source.replace(node, f"({source.segment(node.value)})")


def swapped(source: Source, node: ast.AST) -> Iterator[Change]:
    """`f(a, b)` becomes `f(b, a)`: neighbours among the first three arguments."""
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in (_SYMMETRIC if isinstance(node.func, ast.Attribute) else (*_NO_ORDER, *_SYMMETRIC)):
        return
    for left, right in zip(node.args[:3], node.args[1:3], strict=False):
        first, second = source.segment(left), source.segment(right)
        if first != second and not isinstance(left, ast.GeneratorExp):
            gap = source.text[source.end(left) : source.start(right)].decode()
            yield source.splice(node, source.start(left), source.end(right), second + gap + first)


def group(source: Source, node: ast.AST) -> Iterator[Change]:
    """`group=x` becomes `group=None`: every rank, instead of some."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
            if keyword.arg in _GROUPS and not is_none:
                start, end = source.start(keyword.value), source.end(keyword.value)
                yield source.splice(node, start, end, "None")
