"""Conditions negated, and joined the other way.

Knows: where conditions stand.
Does not know: comparisons (`symbols`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source


def condition(source: Source, node: ast.AST) -> Iterator[Change]:
    """`if a` becomes `if not (a)`, `not a` becomes `a`, `a and b` becomes `a or b`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.replace(node, f"({source.segment(node.operand)})")
    elif isinstance(node, ast.BoolOp):
        yield _joined(source, node)
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    for test in tests:
        is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not is_not and not isinstance(test, ast.Compare | ast.Constant):
            yield source.replace(test, f"not ({source.segment(test)})")


def _joined(source: Source, node: ast.BoolOp) -> Change:
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    start, parts = source.start(node), []
    for left, right in zip(node.values, node.values[1:], strict=False):
        gap = source.text[source.end(left) : source.start(right)].decode()
        parts += [source.text[start : source.end(left)].decode(), gap.replace(old, new, 1)]
        start = source.start(right)
    parts.append(source.text[start : source.end(node)].decode())
    return source.replace(node, f"({''.join(parts)})")
