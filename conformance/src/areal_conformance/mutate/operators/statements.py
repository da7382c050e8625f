"""Statements that are not there any more.

Knows: which statements do something by themselves.
Does not know: expressions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source


def dropped(source: Source, node: ast.AST) -> Iterator[Change]:
    """A call, an assignment to a part of something, `raise`, `del`, `break` or `continue` is left out."""
    if isinstance(node, ast.stmt) and _does_something(node) and not _in_handler(source, node):
        yield source.replace(node, "pass")


def swallowed(source: Source, node: ast.AST) -> Iterator[Change]:
    """An error that was caught is not raised again, and nothing else is done about it."""
    if isinstance(node, ast.stmt) and _does_something(node) and _in_handler(source, node):
        yield source.replace(node, "pass")


def _does_something(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and isinstance(node.target, ast.Attribute)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Break | ast.Continue)


def _in_handler(source: Source, node: ast.stmt) -> bool:
    return isinstance(source.parents[node], ast.ExceptHandler)
