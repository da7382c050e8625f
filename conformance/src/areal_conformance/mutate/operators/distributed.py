"""How a module gets at torch.distributed: which calls are its collectives, and how an operation is written there.

Knows: imports, at the top of a module and inside of functions.
Does not know: edits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Source

_MODULE = "torch.distributed"
_REDUCING = {"all_reduce": 1, "reduce": 2, "reduce_scatter": 2, "reduce_scatter_tensor": 2, "all_reduce_coalesced": 1}
"""Collectives that add up where they are told nothing else, and which of their arguments may tell."""


def uses_torch(source: Source) -> bool:
    """Tell whether a module imports torch, wherever."""
    return any(name.partition(".")[0] == "torch" for name, _, _ in _imported(source))


def adds_up(source: Source, node: ast.Call) -> bool:
    """Tell whether a call is a collective that adds up because no operation is written."""
    if not node.args or any(isinstance(one, ast.Starred) for one in node.args):
        return False
    if any(keyword.arg in ("op", None) for keyword in node.keywords):
        return False
    name = _collective(source, node.func)
    return name in _REDUCING and len(node.args) <= _REDUCING[name]


def operations(source: Source, node: ast.AST) -> str | None:
    """Return how `ReduceOp` is written where a node stands; None where the module has no name for it."""
    found: dict[str, str] = {}
    for name, bound, statement in _imported(source):
        if _in_reach(source, statement, node):
            found[name] = bound
    for name, rest in ((f"{_MODULE}.ReduceOp", ""), (_MODULE, ".ReduceOp"), ("torch", ".distributed.ReduceOp")):
        if name in found:
            return found[name] + rest
    return None


def _collective(source: Source, function: ast.expr) -> str:
    """Return the name torch.distributed has for a function, if it is one of its own; or for what is called alike."""
    if isinstance(function, ast.Attribute):
        owner = source.segment(function.value)
        owners = {bound for name, bound, _ in _imported(source) if name == _MODULE}
        return function.attr if owner in (*owners, _MODULE) else ""
    if not isinstance(function, ast.Name):
        return ""
    for name, bound, _ in _imported(source):
        if bound == function.id:
            return name.removeprefix(f"{_MODULE}.")
    for statement in source.tree.body:  # _ALL_REDUCE = getattr(dist, "all_reduce_single", None) or dist.all_reduce
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        if any(isinstance(one, ast.Name) and one.id == function.id for one in targets):
            return function.id.strip("_").lower()
    return ""


def _imported(source: Source) -> Iterator[tuple[str, str, ast.stmt]]:
    """Yield what is imported, by its dotted name, what it is called, and where; not what only type checkers import."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or alias.name, node
                if alias.asname is None and "." in alias.name:
                    root = alias.name.partition(".")[0]
                    yield root, root, node
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", alias.asname or alias.name, node


def _in_reach(source: Source, statement: ast.stmt, node: ast.AST) -> bool:
    """Tell whether an import is made where a node stands: by the module, or by a function around it."""
    above = source.parents.get(statement)
    while above is not None and not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(above, ast.If) and "TYPE_CHECKING" in source.segment(above.test):
            return False
        above = source.parents.get(above)
    current: ast.AST | None = node
    while above is not None and current is not None and current is not above:
        current = source.parents.get(current)
    return above is None or current is above
