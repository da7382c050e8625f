"""Every mutant of a module, and a sample of them that others can draw again.

A mutant is known by where it stands and what it says, not by a line number: an edit elsewhere in the file leaves its
key, and so what people said of it, as it was.

Knows: which parts of a source are worth changing.
Does not know: how (`operators`), or what becomes of a mutant.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import frozen

from areal_conformance.mutate.operators import OPERATORS
from areal_conformance.mutate.source import Change, Source, one_line

_LOGS = ("logger", "logging", "log", "_log", "_logger", "LOG", "_LOG", "LOGGER", "_LOGGER", "warnings")
_MAX_SHOWN = 160


@frozen(kw_only=True)
class Key:
    """What a mutant is known by.

    Example: Key(path="areal_mine/core.py", function="Engine.pause", operator="condition", before="a", after="not (a)")
    """

    path: str
    function: str
    operator: str
    before: str
    """The source of what is changed, on one line."""
    after: str
    occurrence: int = 1
    """Which of several that are alike in all the rest, from above."""


@frozen(kw_only=True)
class Mutant:
    """One edit of one module."""

    key: Key
    module: str
    line: int
    change: Change
    why: str = ""
    """What the author of an edit says of it."""

    @property
    def place(self) -> str:
        """Return `path:line`."""
        return f"{self.key.path}:{self.line}"


def mutants_of(source: Source) -> list[Mutant]:
    """Return every mutant of a module, from above."""
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for node in _worth_changing(source):
        for operator, find in OPERATORS.items():
            for change in find(source, node):
                words = (source.qualname(change.node), operator, change.before, change.after)
                seen[words] += 1
                function, _, before, after = words
                key = Key(
                    path=source.shown,
                    function=function,
                    operator=operator,
                    before=before,
                    after=after,
                    occurrence=seen[words],
                )
                line = source.text[: change.start].count(b"\n") + 1
                found.append(Mutant(key=key, module=source.name, line=line, change=change))
    return found


def sampled(mutants: Iterable[Mutant], number: int | None, seed: int) -> list[Mutant]:
    """Return so many mutants, drawn by the seed; all of them in that order where no number is given.

    A mutant's place in the order depends on its key and the seed alone: a smaller sample is part of a larger one, and
    a change of the source moves no mutant that it leaves.
    """
    ordered = sorted(mutants, key=lambda mutant: _lot(mutant.key, seed))
    return ordered if number is None else ordered[:number]


def diff(source: Source, mutant: Mutant) -> tuple[str, str]:
    """Return the line as it is and as the mutant has it, or the changed part where that is of several lines."""
    line = source.text.splitlines()[mutant.line - 1].decode()
    if mutant.change.end <= _end_of_line(source, mutant.change.start) and "\n" not in mutant.change.text:
        changed = source.changed(mutant.change).splitlines()[mutant.line - 1]
        return _short(line), _short(changed)
    return _short(mutant.key.before), _short(mutant.key.after)


def _lot(key: Key, seed: int) -> str:
    words = (str(seed), key.path, key.function, key.operator, key.before, key.after, str(key.occurrence))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _end_of_line(source: Source, start: int) -> int:
    end = source.text.find(b"\n", start)
    return len(source.text) if end < 0 else end


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 3]}..."


def _worth_changing(source: Source) -> Iterator[ast.AST]:
    """Return nodes, parents first. Left out: types, texts, logs, assertions, what an error says."""
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in reversed(list(ast.iter_child_nodes(node))) if not _left_out(source, node, child)]


def _left_out(source: Source, node: ast.AST, child: ast.AST) -> bool:
    if isinstance(child, ast.JoinedStr | ast.Assert) or isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.arg | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef):
        types = (getattr(node, "annotation", None), getattr(node, "returns", None))
        if child in types:
            return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child in node.decorator_list:
        return not source.segment(child).endswith(("no_grad()", "inference_mode()"))
    if isinstance(child, ast.If) and "TYPE_CHECKING" in source.segment(child.test):
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call) and _root(child.value.func) in _LOGS:
        return True
    if isinstance(child, ast.Assign) and isinstance(node, ast.Module):
        return isinstance(child.value, ast.Subscript) or source.segment(child).startswith("__all__")
    return False


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
