"""From FILE.py:FUNCTION to a function.

Knows: files and modules, and how to see that a function is there without running its file.
Does not know: what the function does.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import symtable
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told

ARGUMENTS = ("row", "base_url", "api_key")


def check_function(name: str) -> None:
    """Tell while planning that `options.run` names something that is there; runs nothing of the user's.

    Raises:
        ConfigError: there is no such file, module or function, or the file is no Python.
    """
    where, _, function = name.rpartition(":")
    try:
        if not where.endswith(".py"):
            if importlib.util.find_spec(where) is None:
                raise ModuleNotFoundError(f"no module named {where!r}")
        elif function not in _names(_file(where)):
            raise AttributeError(f"{where} defines no {function!r}")
    except (ImportError, AttributeError, SyntaxError, ValueError, OSError) as error:
        raise _no_agent(name, error) from None


def agent_function(name: str) -> Callable[..., Any]:  # Any: the user's own
    """Return the function that `options.run` names.

    Raises:
        ConfigError: there is no such file or function, it raises when it is imported, or takes other arguments.
    """
    where, _, function = name.rpartition(":")
    try:
        found: Any = getattr(_module(where), function)
        inspect.signature(found).bind(*ARGUMENTS)
    except Exception as error:  # whatever a user's file raises
        raise _no_agent(name, error) from error
    checked: Callable[..., Any] = found
    return checked


def _no_agent(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"rollout.workflow.options.run={name} is no agent",
        why=told(error),
        fix="name a function of a file, called as run(row, base_url, api_key): my_agent.py:run",
    )


def _names(path: Path) -> set[str]:
    """Return what a file defines or imports at its top level, without running it."""
    table = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _file(where: str) -> Path:
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    return path


def _module(where: str) -> Any:  # Any: a module
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = _file(where)
    name = f"areal_agent_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
