"""The file or module that an environment stands in.

Knows: that a file is known by its own name afterwards, as verifiers looks its modules up.
Does not know: how it is imported (`areal_agentic.user_function`), or what is in it.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from areal_agentic.user_function import user_module


def module_of(where: str, key: str, fix: str) -> ModuleType:
    """Return the module.

    Args:
        where: FILE.py, or the name of an installed module.
        key: what named it, for the error, such as `data.options.environment`.
        fix: what to do if there is none.

    Raises:
        ConfigError: there is no such file or module, or it raises when it is imported.
    """
    return user_module(where, what=f"{key}={where} cannot be imported", fix=fix, known_as=Path(where).stem)
