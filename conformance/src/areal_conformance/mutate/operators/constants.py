"""Other constants: one more, one hundredth more, the opposite, another default.

Knows: which constants are counts, which are sizes, and where a default stands.
Does not know: texts; nobody is held to the words of a message.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source

LARGE = 100
"""From here on an integer is a size, and is nudged by 1%; below it is a count or an index, and one more is wrong."""
_SHARE = 0.01


def flag(source: Source, node: ast.AST) -> Iterator[Change]:
    """`True` becomes `False`, where it is no default."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool) and not _is_default(source, node):
        yield source.replace(node, str(not node.value))


def off_by_one(source: Source, node: ast.AST) -> Iterator[Change]:
    """`n` becomes `n + 1`: small integers, bounds of slices, the end of a range."""
    if _whole(node) and not _is_default(source, node) and abs(node.value) < LARGE:  # type: ignore[attr-defined]
        yield source.replace(node, str(node.value + 1))  # type: ignore[arg-type, attr-defined]
    bounds: list[ast.expr | None] = [node.lower, node.upper] if isinstance(node, ast.Slice) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        bounds += node.args[:2]
    for bound in bounds:
        if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp | ast.Starred):
            yield source.replace(bound, f"({source.segment(bound)}) + 1")


def nudged(source: Source, node: ast.AST) -> Iterator[Change]:
    """`0.5` becomes `0.505`, `1024` becomes `1034`."""
    if not isinstance(node, ast.Constant) or _is_default(source, node):
        return
    if isinstance(node.value, float):
        yield source.replace(node, _more(node.value))
    elif _whole(node) and abs(node.value) >= LARGE:  # type: ignore[arg-type]
        yield source.replace(node, str(node.value + node.value // LARGE))  # type: ignore[operator]


def default(source: Source, node: ast.AST) -> Iterator[Change]:
    """A default of an argument or a field is the opposite, one more, or a hundredth more."""
    if not isinstance(node, ast.Constant) or not _is_default(source, node):
        return
    if isinstance(node.value, bool):
        yield source.replace(node, str(not node.value))
    elif isinstance(node.value, int):
        yield source.replace(node, str(node.value + 1))
    elif isinstance(node.value, float):
        yield source.replace(node, _more(node.value))


def _whole(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)


def _more(value: float) -> str:
    return repr(float(f"{value * (1 + _SHARE):.12g}")) if value else repr(_SHARE)


def _is_default(source: Source, node: ast.AST) -> bool:
    """Tell whether a constant is the default of an argument, or of a field of a class."""
    child, parent = node, source.parents[node]
    if isinstance(parent, ast.UnaryOp):
        child, parent = parent, source.parents[parent]
    if isinstance(parent, ast.arguments):
        return child in parent.defaults or child in parent.kw_defaults
    if isinstance(parent, ast.keyword) and parent.arg == "default":
        return True
    return isinstance(parent, ast.AnnAssign) and isinstance(source.parents[parent], ast.ClassDef)
