"""From FILE.py:FUNCTION to a function that the policy may call.

Knows: files and modules.
Does not know: what a function does, or how it is described (`areal_agentic.tools`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told


def function_of(name: str, key: str) -> Callable[..., Any]:  # Any: the user's own
    """Return the function that an option names as FILE.py:FUNCTION or MODULE:FUNCTION.

    Raises:
        ConfigError: there is none, or its file raises when it is imported.
    """
    where, _, function = name.rpartition(":")
    try:
        found = getattr(_file(where) if where.endswith(".py") else importlib.import_module(where), function)
        if not callable(found):
            raise TypeError(f"{function} is a {type(found).__name__}")
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(
            f"{key} names {name}, which cannot be called",
            why=told(error),
            fix="name a function of a file, relative to the folder areal is started in: my_tools.py:search",
        ) from error
    return found  # type: ignore[no-any-return]


def _file(where: str) -> ModuleType:
    path = Path(where).expanduser().resolve()
    name = f"areal_tools_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up in it by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
