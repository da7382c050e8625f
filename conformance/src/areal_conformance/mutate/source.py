"""The text of one module, its syntax tree, and edits that change one place of it and nothing else.

Knows: positions in bytes, as `ast` gives them, and who a node's parents are.
Does not know: which edits are worth making (`operators`).
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from attrs import define, field, frozen

Spot = ast.expr | ast.stmt | ast.arg | ast.keyword | ast.excepthandler
"""Nodes that have a position."""


@frozen(kw_only=True)
class Change:
    """One edit: the bytes from `start` to `end` become `text`.

    Example: Change(start=120, end=121, text="-", node=binop, before="a + b", after="a - b")
    """

    start: int
    end: int
    text: str
    node: Spot
    """What is changed, for its place."""
    before: str
    """The source of that, on one line."""
    after: str
    beside: tuple[Spot, ...] = ()
    """Further statements that it changes: an edit of a person may be of several."""


@define
class Source:
    """One module. `name` is its dotted name, `shown` its path below the folder it is imported from."""

    name: str
    path: Path
    text: bytes
    tree: ast.Module = field(init=False)
    parents: dict[ast.AST, ast.AST] = field(init=False)
    _lines: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._lines = [0]
        for line in self.text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    @classmethod
    def read(cls, name: str, path: Path) -> Source:
        """Read a module.

        Raises:
            OSError, SyntaxError: it cannot be read.
        """
        return cls(name=name, path=path, text=path.read_bytes())

    @cached_property
    def shown(self) -> str:
        """Return its path as it is imported, the same on every machine: `areal_mine/engine.py`."""
        parts = self.name.split(".")
        if self.path.stem == "__init__":
            return "/".join([*parts, "__init__.py"])
        return "/".join([*parts[:-1], self.path.name])

    def start(self, node: Spot) -> int:
        """Return where a node begins."""
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: Spot) -> int:
        """Return where a node ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: Spot) -> str:
        """Return a node's own text."""
        return self.text[self.start(node) : self.end(node)].decode()

    def replace(self, node: Spot, text: str) -> Change:
        """Put `text` in the place of a node."""
        return self.splice(node, self.start(node), self.end(node), text)

    def between(self, node: Spot, left: Spot, right: Spot, old: str, new: str) -> Change | None:
        """Change the token that stands between two parts of a node; None where it is not to be found."""
        start, end = self.end(left), self.start(right)
        gap = self.text[start:end].decode()
        at = gap.find(old)
        if at < 0 or "#" in gap[:at]:
            return None
        return self.splice(node, start, end, gap[:at] + new + gap[at + len(old) :])

    def splice(self, node: Spot, start: int, end: int, text: str) -> Change:
        """Put `text` in the place of some bytes of a node."""
        head = self.text[self.start(node) : start].decode()
        tail = self.text[end : self.end(node)].decode()
        return Change(
            start=start,
            end=end,
            text=text,
            node=node,
            before=one_line(self.segment(node)),
            after=one_line(head + text + tail),
        )

    def changed(self, change: Change) -> str:
        """Return the whole text with one edit made."""
        return (self.text[: change.start] + change.text.encode() + self.text[change.end :]).decode()

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def statements(self, first: int, last: int) -> list[Spot]:
        """Return the innermost statements that stand on these lines, from above; the nearest one where none does.

        A statement with others inside stands on the lines of its head; all of it where it is a function's or class's.
        """
        every = sorted((n for n in ast.walk(self.tree) if isinstance(n, ast.stmt)), key=lambda n: n.lineno)
        found: list[Spot] = [n for n in every if n.lineno <= last and first <= self.head(n)]
        if found or not every:
            return found or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)]
        return [min(every, key=lambda n: (abs(n.lineno - first), n.lineno))]

    def head(self, statement: ast.stmt) -> int:
        """Return a statement's last line, without those of statements inside it."""
        assert statement.end_lineno is not None
        inner = getattr(statement, "body", None)
        return max(statement.lineno, inner[0].lineno - 1) if inner else statement.end_lineno

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the innermost function whose body, not whose head, holds a node."""
        child, parent = node, self.parents.get(node)
        while parent is not None:
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and child in parent.body:
                return parent
            child, parent = parent, self.parents.get(parent)
        return None

    def qualname(self, node: ast.AST) -> str:
        """Return the dotted name of the function or class around a node; `<module>` outside of all."""
        names: list[str] = []
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(current.name)
            current = self.parents.get(current)
        return ".".join(reversed(names)) or "<module>"


def one_line(text: str) -> str:
    """Return source text with every run of white space made one blank."""
    return " ".join(text.split())
