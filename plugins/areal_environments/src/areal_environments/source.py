"""From FILE.py or MODULE to a module, imported once.

Knows: files and modules.
Does not know: what is in them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told


def module_of(where: str, key: str, fix: str) -> ModuleType:
    """Return the module; a file is known by its own name afterwards, as verifiers looks its modules up.

    Args:
        where: FILE.py, or the name of an installed module.
        key: what named it, for the error, such as `data.options.environment`.
        fix: what to do if there is none.

    Raises:
        ConfigError: there is no such file or module, or it raises when it is imported.
    """
    try:
        return _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(f"{key}={where} cannot be imported", why=told(error), fix=fix) from error


def _file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise ImportError(f"a module {path.stem} is imported already, from {getattr(known, '__file__', None)}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
