"""Every number of a plugin's source at which it goes another way is a threshold, or the adapter says why not.

Knows: how such numbers are written: in capitals, at the top of a module, and compared, counted to or cut by.
Does not know: what one decides.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping

from areal_conformance.benches.static import StaticBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}
_MOST_BITS = 64
"""What is shifted or raised further is no size."""
_BOUNDED = ("range", "min", "max", "split", "chunk", "batched", "islice")
"""Calls that count to a number, bound another by it, or cut by it."""


@check("static.sizes.accounted", level=Level.STATIC, law=8, spec="index#optional-abilities")
def accounted(bench: StaticBench) -> None:
    """Where an adapter has `no_threshold`, numbers in capitals that the source decides by are there, or thresholds."""
    adapter = bench.target.adapter
    sizes = set(sizes_of(_of_backend(bench)))
    excused = adapter.no_threshold
    open_ones = sorted(sizes - {one.place for one in adapter.thresholds} - set(excused))
    if not excused:
        bench.notes += [f"no threshold names {', '.join(open_ones)}"] if open_ones else []
        return
    told = "let a threshold name its place, or say why not in no_threshold"
    expect(not open_ones, f"the source goes another way at {', '.join(open_ones)}: {told}")
    strange = sorted(set(excused) - sizes)
    expect(not strange, f"no_threshold names {', '.join(strange)}, where the source has no such number to decide by")
    silent = sorted(name for name, why in excused.items() if not why.strip())
    expect(not silent, f"no_threshold says of {', '.join(silent)} no reason")


def _of_backend(bench: StaticBench) -> Mapping[str, ast.Module]:
    """Return what the factory imports of its distribution, without what is there for the suite and for tests."""
    adapter = (bench.manifest.conformance or "").partition(":")[0]
    sources = bench.factory_sources()
    return {name: tree for name, tree in sources.items() if name != adapter and ".testing" not in name}


def sizes_of(sources: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield `module:NAME` of each integer above one that the sources name in capitals and decide by."""
    named = {module: _numbers(tree) for module, tree in sources.items()}
    deciding = {module: _deciding(tree) for module, tree in sources.items()}
    for module, names in named.items():
        elsewhere = {name for one, found in deciding.items() if one != module for name in found - set(named[one])}
        yield from (f"{module}:{name}" for name in sorted(set(names) & (deciding[module] | elsewhere)))


def _numbers(tree: ast.Module) -> dict[str, int]:
    """Return the integers above one that a module names in capitals; of a tuple the largest."""
    found: dict[str, int] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            value = _value(line.value, found)
            for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                if isinstance(target, ast.Name) and target.id.isupper() and value is not None and value > 1:
                    found[target.id] = value
    return found


def _value(node: ast.expr, known: Mapping[str, int]) -> int | None:
    """Return the integer that an expression of numbers, or of names of them, is; None for any other."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Tuple):
        sizes = [_value(one, known) for one in node.elts]
        return None if not sizes or None in sizes else max(size for size in sizes if size is not None)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
        return None
    left, right = _value(node.left, known), _value(node.right, known)
    if left is None or right is None or (isinstance(node.op, ast.LShift | ast.Pow) and not 0 <= right <= _MOST_BITS):
        return None
    return _OPERATIONS[type(node.op)](left, right)


def _deciding(tree: ast.Module) -> set[str]:
    """Return the names, and attributes, in what is compared, counted to, divided by, chosen from, or bounds a piece."""
    tuples = {
        target.id
        for line in tree.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Tuple)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    parts: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts += [node.left, *node.comparators]
        elif isinstance(node, ast.Slice):
            parts += [node.lower, node.upper, node.step]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            parts.append(node.right)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            parts += node.args if called in _BOUNDED else []
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in tuples:
            parts.append(node)
    inner = [one for part in parts if part is not None for one in ast.walk(part)]
    return {one.id for one in inner if isinstance(one, ast.Name)} | {
        one.attr for one in inner if isinstance(one, ast.Attribute)
    }
