"""Another reduction: a mean in the place of a sum, the least in the place of the greatest.

Knows: names of reductions in Python, torch and torch.distributed.
Does not know: over which group of ranks (`groups`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.operators.distributed import adds_up, operations
from areal_conformance.mutate.source import Change, Source

_METHODS = {
    "sum": "mean",
    "mean": "sum",
    "max": "min",
    "min": "max",
    "amax": "amin",
    "amin": "amax",
    "argmax": "argmin",
    "argmin": "argmax",
    "all": "any",
    "any": "all",
    "floor": "ceil",
    "ceil": "floor",
}
_FUNCTIONS = {"max": "min", "min": "max", "all": "any", "any": "all"}
_OPERATIONS = {"SUM": "MAX", "AVG": "SUM", "MAX": "MIN", "MIN": "MAX", "PRODUCT": "SUM"}


def other(source: Source, node: ast.AST) -> Iterator[Change]:
    """`x.sum()` becomes `x.mean()`, `max(a, b)` `min(a, b)`, `ReduceOp.SUM` `ReduceOp.MAX`, also where none is said."""
    if isinstance(node, ast.Call) and adds_up(source, node):
        operation = operations(source, node)
        if operation is not None:
            end = max([*map(source.end, node.args), *map(source.end, node.keywords)])
            yield source.splice(node, end, end, f", op={operation}.{_OPERATIONS['SUM']}")
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            end = source.end(node.func)
            yield source.splice(node, end - len(node.func.attr), end, _METHODS[node.func.attr])
        elif isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            start, end = source.start(node.func), source.end(node.func)
            yield source.splice(node, start, end, _FUNCTIONS[node.func.id])
    elif isinstance(node, ast.Attribute) and node.attr in _OPERATIONS:
        owner = source.segment(node.value)
        if owner.rpartition(".")[2] == "ReduceOp":
            yield source.replace(node, f"{owner}.{_OPERATIONS[node.attr]}")
