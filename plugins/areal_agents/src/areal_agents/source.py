"""From FILE.py:FUNCTION to a function.

Knows: files and modules.
Does not know: what the function does.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told

ARGUMENTS = ("row", "base_url", "api_key")


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
        raise ConfigError(
            f"rollout.workflow.options.run={name} is no agent",
            why=told(error),
            fix="name a function of a file, called as run(row, base_url, api_key): my_agent.py:run",
        ) from error
    checked: Callable[..., Any] = found
    return checked


def _module(where: str) -> Any:  # Any: a module
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).expanduser().resolve()
    name = f"areal_agent_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
