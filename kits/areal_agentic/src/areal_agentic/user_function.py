"""A function or module of the user's own: FILE.py:FUNCTION, MODULE:FUNCTION, FILE.py or MODULE.

Knows: files, modules, and how to see that a function is there without running its file.
Does not know: what it is for, and so what an error is to say about it: `what` and `fix` come from who names it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import symtable
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told

_IMPORTS = importlib.__path__[0]


def check_function(name: str, *, what: str, fix: str) -> None:
    """Tell while planning that a function is there; runs no file, and of a module only its parents.

    Raises:
        ConfigError: there is no such file, module or function, or the file is no Python.
    """
    where, _, function = name.rpartition(":")
    with _blamed(what, fix):
        if not where.endswith(".py"):
            if importlib.util.find_spec(where) is None:
                raise ModuleNotFoundError(f"no module named {where!r}")
        else:
            _look_for(function, where)


def user_function(name: str, *, what: str, fix: str, takes: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a function, its module imported once. Any: the user's own.

    Args:
        name: FILE.py:FUNCTION or MODULE:FUNCTION.
        what: what is wrong if there is none, such as `rollout.workflow.options.run=x.py:run is no agent`.
        fix: what to do then.
        takes: arguments that it is called with.

    Raises:
        ConfigError: there is none, it cannot be called so, or its file raises when it is imported.
    """
    where, _, function = name.rpartition(":")
    with _blamed(what, fix):
        found = getattr(_module(where), function)
        if not callable(found):
            raise TypeError(f"{function} is a {type(found).__name__}")
        if takes:
            _check_takes(found, function, takes)
    return found  # type: ignore[no-any-return]


def user_module(where: str, *, what: str, fix: str, known_as: str = "") -> ModuleType:
    """Return a module, imported once.

    Args:
        where: FILE.py, or the name of an installed module.
        what: what is wrong if there is none.
        fix: what to do then.
        known_as: the name of a file's module, for libraries that look it up; else one that no other file has.

    Raises:
        ConfigError: there is none, or it raises when it is imported.
    """
    with _blamed(what, fix):
        return _module(where, known_as)


@contextmanager
def _blamed(what: str, fix: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise ConfigError(what, why=told(error.with_traceback(_theirs(error.__traceback__))), fix=fix) from error


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from where it left this file and Python's own importing."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen importlib", _IMPORTS)):
        trace = trace.tb_next
    return trace


def _look_for(function: str, where: str) -> None:
    """Find what a file defines or imports at its top level, without running it."""
    path = _found(where)
    symbols = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec").get_symbols()
    if function not in {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}:
        there = [symbol.get_name() for symbol in symbols if symbol.is_namespace()]
        raise AttributeError(f"{where} defines no {function!r}; it has: {', '.join(there) or 'no function'}")


def _check_takes(found: Callable[..., Any], name: str, takes: Sequence[str]) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind(*takes)
    except TypeError:
        raise TypeError(f"{name}{signature} is not called with {', '.join(takes)}") from None


def _found(where: str) -> Path:
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    return path


def _module(where: str, known_as: str = "") -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = _found(where)
    name = known_as or f"areal_function_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) != str(path):
            raise ImportError(f"a module {name} is imported already, from {getattr(known, '__file__', None)}")
        return known
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # modules beside it are found, as by `python FILE.py`
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up in it by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
