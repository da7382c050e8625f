"""Another group of ranks: every rank, or one that stands beside the right one.

Knows: how groups are called: by the keyword they are given for, by their names, by the axis whose ranks they hold.
Does not know: what is said to a group (`reductions`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from areal_conformance.mutate.operators.distributed import uses_torch
from areal_conformance.mutate.source import Change, Source

_KEYWORDS = ("group", "process_group", "pg")
_NAMED = re.compile(r"(\w*_)?(group|pg)")
_GIVEN = re.compile(r"get_(\w+_)?group")
"""Functions that return one: `get_data_parallel_group()`, `mesh.get_group("dp")`."""
_AXES = {
    *("tensor", "data", "context", "pipeline", "expert", "embedding", "sequence", "replica", "replicas", "shard"),
    *("shards", "tp", "dp", "cp", "pp", "ep", "etp", "edp", "parallel", "ranks", "mesh"),
}
Group = ast.Name | ast.Attribute | ast.Call


def other(source: Source, node: ast.AST) -> Iterator[Change]:
    """`group=x` becomes `group=None`, every rank; `ranks.tensor` becomes `ranks.data`, where both are named."""
    if isinstance(node, ast.Call):
        yield from _every_rank(source, node)
    if isinstance(node, Group) and _is_group(source, node):
        beside = _beside(source, node)
        if beside is not None:
            yield source.replace(node, beside)


def _every_rank(source: Source, node: ast.Call) -> Iterator[Change]:
    given = [one.value for one in node.keywords if one.arg in _KEYWORDS]
    given += [one for one in node.args if isinstance(one, Group) and _is_group(source, one)]
    for one in given:
        if not isinstance(one, ast.Constant):
            yield source.splice(node, source.start(one), source.end(one), "None")


def _is_group(source: Source, node: Group) -> bool:
    """Tell whether an expression that is read is called as groups of ranks are, in a module that has tensors."""
    parent = source.parents[node]
    if isinstance(node, ast.Call):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        called = bool(_GIVEN.fullmatch(named)) and not (isinstance(inner, Group) and _is_group(source, inner))
        return called and uses_torch(source)
    if not isinstance(node.ctx, ast.Load) or (isinstance(parent, ast.Call) and parent.func is node):
        return False
    if isinstance(parent, ast.Attribute) and parent.attr == "WORLD":
        return False
    if isinstance(parent, ast.keyword) and parent.arg in _KEYWORDS:
        return uses_torch(source)
    if _NAMED.fullmatch(node.id if isinstance(node, ast.Name) else node.attr):
        return uses_torch(source)
    return isinstance(node, ast.Attribute) and _is_axis(node) and len(_siblings(source, node)) > 1


def _is_axis(node: ast.Attribute) -> bool:
    return _AXES.issuperset(node.attr.strip("_").split("_"))


def _siblings(source: Source, node: ast.Attribute) -> set[str]:
    """Return the axes of the same owner that the module names."""
    owner = source.segment(node.value)
    return {
        one.attr
        for one in ast.walk(source.tree)
        if isinstance(one, ast.Attribute) and _is_axis(one) and source.segment(one.value) == owner
    }


def _beside(source: Source, node: Group) -> str | None:
    """Return the next group that the same function names, of the same owner if there is one; else of the module."""
    here = source.function(node)
    near = [one for one in _groups(source, here or source.tree) if _is_bound(source, here, one, node)]
    owner = _owner(source, node)
    far = [one for one in _groups(source, _body_around(source, node)) if owner and _owner(source, one) == owner]
    for found in ([one for one in near if _owner(source, one) == owner], far, near):
        names = list(dict.fromkeys(map(source.segment, found)))
        own = source.segment(node)
        at = names.index(own) if own in names else -1
        if len(names) > 1 or (names and at < 0):
            return names[(at + 1) % len(names)]
    return None


def _groups(source: Source, within: ast.AST) -> list[Group]:
    found = [one for one in ast.walk(within) if isinstance(one, Group) and _is_group(source, one)]
    return sorted(found, key=source.start)


def _owner(source: Source, node: Group) -> str:
    """Return what a group is an attribute of, or a method returns it; nothing for a plain name."""
    inner = node.func if isinstance(node, ast.Call) else node
    return source.segment(inner.value) if isinstance(inner, ast.Attribute) else ""


def _body_around(source: Source, node: ast.AST) -> ast.AST:
    """Return the class around a node where `self` means the same; else the module."""
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.ClassDef):
        above = source.parents.get(above)
    return above or source.tree


def _is_bound(source: Source, here: ast.FunctionDef | ast.AsyncFunctionDef | None, one: Group, node: Group) -> bool:
    """Tell whether the name a group begins with has its value where the node stands."""
    root: ast.AST = one
    while isinstance(root, ast.Attribute | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    if here is None or not isinstance(root, ast.Name):
        return True
    arguments = (*here.args.posonlyargs, *here.args.args, *here.args.kwonlyargs)
    if root.id in {argument.arg for argument in arguments}:
        return True
    made = [
        each.lineno
        for each in ast.walk(here)
        if isinstance(each, ast.Name) and each.id == root.id and isinstance(each.ctx, ast.Store)
    ]
    return not made or min(made) < node.lineno
