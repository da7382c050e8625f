"""Other signs between operands: of arithmetic, of comparisons, at their boundaries.

Knows: which sign becomes which.
Does not know: signs that join conditions (`conditions`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from areal_conformance.mutate.source import Change, Source

_ARITHMETIC: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_COMPARISON: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">"),
    ast.LtE: ("<=", ">="),
    ast.Gt: (">", "<"),
    ast.GtE: (">=", "<="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_BOUNDARY: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}


def arithmetic(source: Source, node: ast.AST) -> Iterator[Change]:
    """`a + b` becomes `a - b`, `a *= b` becomes `a /= b`, `-a` becomes `a`; texts and types are left alone."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield source.replace(node, f"({source.segment(node.operand)})")
    if not isinstance(node, ast.BinOp | ast.AugAssign) or type(node.op) not in _ARITHMETIC:
        return
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    if any(map(_no_number, (left, right))):
        return
    old, new = _ARITHMETIC[type(node.op)]
    change = source.between(node, left, right, old, new)
    if change is not None:
        yield change


def comparison(source: Source, node: ast.AST) -> Iterator[Change]:
    """`a < b` becomes `a > b`, `a == b` becomes `a != b`, `in` becomes `not in`."""
    return _compared(source, node, _COMPARISON)


def boundary(source: Source, node: ast.AST) -> Iterator[Change]:
    """`a < b` becomes `a <= b`, and the other way round."""
    return _compared(source, node, _BOUNDARY)


def _compared(source: Source, node: ast.AST, table: Mapping[type[ast.cmpop], tuple[str, str]]) -> Iterator[Change]:
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, right, sign in zip(operands, operands[1:], node.ops, strict=False):
        if type(sign) in table:
            change = source.between(node, left, right, *table[type(sign)])
            if change is not None:
                yield change


def _no_number(node: ast.expr) -> bool:
    """Tell whether an operand is a text, or a type: `"a" + b`, `int | None`."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes | None)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Name) and node.id in ("int", "str", "float"))
