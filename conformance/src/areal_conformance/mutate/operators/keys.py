"""Keys that tell less apart than they should: what is kept under them is then found by another.

Knows: where a tuple is a key.
Does not know: what is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source

_LOOKUPS = ("get", "pop", "setdefault", "add", "discard", "remove")


def shortened(source: Source, node: ast.AST) -> Iterator[Change]:
    """`cache[a, b]` becomes `cache[(a,)]`; `key = (a, b)` becomes `key = (a,)`."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2 or not isinstance(node.ctx, ast.Load):
        return
    if any(isinstance(one, ast.Slice | ast.Starred) for one in node.elts) or not _is_key(source, node):
        return
    kept = ", ".join(source.segment(one) for one in node.elts[:-1])
    yield source.replace(node, f"({kept},)")


def _is_key(source: Source, node: ast.Tuple) -> bool:
    parent = source.parents[node]
    if isinstance(parent, ast.Subscript):
        return parent.slice is node
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        return parent.func.attr in _LOOKUPS and parent.args[:1] == [node]
    if isinstance(parent, ast.Assign):
        return any("key" in source.segment(target).lower() for target in parent.targets)
    if isinstance(parent, ast.Return):
        return "key" in source.qualname(node).rpartition(".")[2].lower()
    if isinstance(parent, ast.DictComp):
        return parent.key is node
    return isinstance(parent, ast.Compare | ast.Dict) and node in (
        parent.keys if isinstance(parent, ast.Dict) else [parent.left]
    )
