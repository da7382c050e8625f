"""A user's function as the text of a file that defines it, with everything it reads: code travels as its source.

Knows: where the source of a function is, which global names it reads, and which values can be written down.
Does not know: what the function is for (`task`).

A function of a module is imported from there. One of a script or a notebook is copied, with what it reads of it:
functions and classes by their source, modules and what came from them by an import, plain values as they are now.
Whatever else it reads is refused by name: a copy of an open file, a model or a counter would not be the same thing.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import re
import symtable
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from areal_core.contract.errors import ConfigError
from areal_core.plugins.redact import names_secret, redact

_MAX_LITERAL = 100_000
"""Characters a plain value may have in the file; more is data."""
_SECRET_CHARACTERS = 8
"""Of a text under the name of a secret; a shorter one is the name of a column, say."""


class Source:
    """The text of a file, grown from one function: `Source(function, "the reward")`."""

    def __init__(self, function: object, what: str, *, awaited: bool = False) -> None:
        """Read the function and all that it reads; it may be a coroutine function where it is `awaited`.

        Raises:
            ConfigError: `what` is no function of Python, its source is not there, or it reads what does not travel.
        """
        if inspect.iscoroutinefunction(function) and not awaited:
            raise ConfigError(f"{what} is a coroutine", why="rewards are called, not awaited", fix="use def")
        self._what = what
        self._paths: list[str] = []
        self._imports: list[str] = []
        self._parts: list[str] = []
        self._seen: dict[str, object] = {}
        self.name = self._add(function)

    @property
    def text(self) -> str:
        """Return the file; `name` is the function in it."""
        head = ["from __future__ import annotations\n"]
        if self._paths:
            roots = "".join(f"    {path!r},\n" for path in self._paths)
            head.append(f"import sys\n\nsys.path += [path for path in (\n{roots}) if path not in sys.path]\n")
        if self._imports:
            head.append("\n".join(dict.fromkeys(self._imports)) + "\n")
        return "\n".join([*head, *self._parts])

    def _add(self, function: object) -> str:
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"{self._what} is a {type(function).__name__}, and no function",
                why="it is called in processes of its own, which make it from its source",
                fix="define a function that does the call: def reward(completion, row): ...",
            )
        if (module := _importable(function)) is not None:
            return self._import(module, function.__name__, function.__name__)
        if function.__closure__:
            self._refuse_closure(function)
        return self._copy(function)

    def _refuse_closure(self, function: FunctionType) -> None:
        name = function.__code__.co_freevars[0]
        raise ConfigError(
            f"{self._what} reads the variable {name!r} of the function it was made in",
            why="it runs in other processes, which have its source alone",
            fix=f"define {name!r} and {_called(function)!r} outside of any function, or give it as a column",
        )

    def _copy(self, function: FunctionType) -> str:
        """Add the source of a function, and before it all that it reads."""
        is_lambda = function.__name__ == "<lambda>"
        name = "reward" if is_lambda else function.__name__
        if self._seen.get(name) is function:
            return name
        self._seen[name] = function
        text = f"{name} = {_lambda(function, self._what)}\n" if is_lambda else _definition(function, self._what)
        self._read(text, name, function.__globals__)
        self._keep(f"\n{text}", f"the source of {name!r}")
        return name

    def _read(self, text: str, name: str, known: dict[str, Any]) -> None:  # Any: a module's names
        for each, at_once in _globals_of(text, self._what):
            if each == name or (each in known and self._seen.get(each) is known[each] is not None):
                continue
            if each in known:
                self._write(each, known[each], known)
            elif at_once:
                raise ConfigError(
                    f"{self._what} reads {each!r} where {name!r} is defined",
                    why="it is a variable of the function around, in a default value or a decorator",
                    fix=f"define {each!r} and {name!r} outside of any function",
                )

    def _write(self, name: str, value: Any, known: dict[str, Any]) -> None:
        """Add what a global name stands for. Any: whatever the user put there."""
        if isinstance(value, ModuleType) and value.__name__ != "__main__":
            self._root(value)
            self._imports.append(f"import {value.__name__} as {name}")
        elif (literal := _literal(value)) is not None and len(literal) <= _MAX_LITERAL:
            if isinstance(value, str) and len(value) >= _SECRET_CHARACTERS and names_secret(name):
                raise self._secret(f"the global variable {name!r}")
            self._keep(f"{name} = {literal}\n", f"the global variable {name!r}")
            if literal.startswith("re."):
                self._imports.append("import re")
        elif (module := _importable(value)) is not None:
            self._import(module, value.__qualname__, name)
        elif isinstance(value, FunctionType) and not value.__closure__ and value.__name__ == name:
            self._copy(value)
        elif isinstance(value, type) and value.__name__ == name:
            self._seen[name] = value
            text = _definition(value, self._what)
            self._read(text, name, known)
            self._keep(f"\n{text}", f"the source of {name!r}")
        else:
            raise ConfigError(
                f"{self._what} reads the global variable {name!r}, which does not travel",
                why=f"it is of type {type(value).__name__}; the function runs in other processes, which can copy "
                "functions, classes, modules and plain values alone",
                fix=f"make {name!r} inside the function, or in a module that is imported; or name a file of yours: "
                "imports=['rewards.py'], reward='its name'",
            )
        self._seen[name] = value

    def _keep(self, text: str, where: str) -> None:
        """Add a part of the file, which lies in the run folder for good."""
        if redact(text) != text:
            raise self._secret(where)
        self._parts.append(text)

    def _secret(self, where: str) -> ConfigError:
        return ConfigError(
            f"{self._what} reads a secret: {where} holds what looks like one",
            why="its source is written into the run folder, and secrets are never written to disk",
            fix="read it inside the function from the environment: os.environ['NAME']",
        )

    def _import(self, module: ModuleType, qualified: str, name: str) -> str:
        self._root(module)
        self._imports.append(
            f"from {module.__name__} import {qualified}" + (f" as {name}" if name != qualified else "")
        )
        return name

    def _root(self, module: ModuleType) -> None:
        """Have the folder of a module that is not installed found by other processes too."""
        file = getattr(module, "__file__", None)
        if file is None or module.__name__.partition(".")[0] in sys.stdlib_module_names or "site-packages" in file:
            return
        path = Path(file).resolve()
        depth = module.__name__.count(".") + (1 if path.name == "__init__.py" else 0)
        root = str(path.parents[depth])
        if root not in self._paths:
            self._paths.append(root)


def _importable(value: Any) -> ModuleType | None:  # Any: whatever a name stands for
    """Return the module other processes find the very same thing in."""
    name, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    if module is None or not qualified.isidentifier() or getattr(module, "__spec__", None) is None:
        return None
    return module if getattr(module, qualified, None) is value else None


def _called(function: FunctionType) -> str:
    return "reward" if function.__name__ == "<lambda>" else function.__name__


def _definition(value: FunctionType | type, what: str) -> str:
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError) as error:
        found = _class_of_a_cell(value.__name__) if isinstance(value, type) else None
        if found is None:
            raise _no_source(value.__name__, what, error) from None
        return found


def _class_of_a_cell(name: str) -> str | None:
    """Return the newest class of a name among the cells of a notebook: a class does not know its cell."""
    for file, entry in reversed(list(linecache.cache.items())):
        lines = entry[2] if len(entry) > 2 and not Path(file).exists() else []
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in reversed(tree.body):
            if isinstance(node, ast.ClassDef) and node.name == name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    return None


def _lambda(function: FunctionType, what: str) -> str:
    """Return the text of a lambda: of several in a line, the one whose body is where its code says."""
    try:
        lines, _ = inspect.findsource(function)
        source = "".join(lines)
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError) as error:
        raise _no_source("a lambda", what, error) from None
    # The first place is that of the whole function, the others are those of its body.
    places = [(line, column) for line, _, column, _ in list(function.__code__.co_positions())[1:] if line and column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == function.__code__.co_firstlineno:
            first = (node.body.lineno, node.body.col_offset)
            last = (node.body.end_lineno or 0, node.body.end_col_offset or 0)
            found = ast.get_source_segment(source, node)
            if found and all(first <= place <= last for place in places):
                return f"({found})"
    raise _no_source("a lambda", what, "it is not where its code says")


def _no_source(name: str, what: str, error: object) -> ConfigError:
    return ConfigError(
        f"the source of {name} is not there",
        why=f"{what} travels as its source: {error}",
        fix="define it in a file or in a cell of a notebook, not at a prompt",
    )


def _globals_of(text: str, what: str) -> Iterator[tuple[str, bool]]:
    """Yield the global names a definition reads, without those Python has, and whether it reads them at once.

    Raises:
        ConfigError: it writes one.
    """
    tables = [symtable.symtable("from __future__ import annotations\n" + text, "<source>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                raise ConfigError(
                    f"{what} writes the global variable {symbol.get_name()!r}",
                    why="every reward process has a copy of its own, and so has this one",
                    fix="return what it finds: a mapping with 'value' and named parts",
                )
            top = table.get_type() == "module"
            if symbol.is_referenced() and (top or symbol.is_global()) and not hasattr(builtins, symbol.get_name()):
                yield symbol.get_name(), top


def _literal(value: Any) -> str | None:  # Any: whatever a name stands for
    """Return how a plain value is written in Python, None for any other."""
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is re.Pattern:
        return f"re.compile({value.pattern!r}, {int(value.flags)})"
    if type(value) in (list, tuple, set, frozenset):
        items = [_literal(item) for item in value]
        if None in items:
            return None
        return f"{type(value).__name__}([{', '.join(map(str, items))}])"
    if type(value) is dict:
        pairs = [(_literal(key), _literal(item)) for key, item in value.items()]
        return None if any(None in pair for pair in pairs) else "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    return None
