"""The interpreter that runs a server, by the name of its backend.

Knows: which plugin has the recipe.
Does not know: where environments lie (`areal_serving.environments`); imports no torch.
"""

from __future__ import annotations

from areal_core.plugins.registry import Registry, default_registry
from areal_serving.environments import lookup
from areal_serving.environments.inventory import recipe_for
from areal_serving.environments.lookup import EnginePython

__all__ = ["EnginePython", "find"]


def find(name: str, device: str, python: str | None = None, *, registry: Registry | None = None) -> EnginePython:
    """Return the interpreter that has a backend's engine; called in the worker, before its server is started.

    Looks at `python` alone if it is given, else at this interpreter and then at the environment that
    `areal env create` made.

    Raises:
        EngineMissing: none has it; the fix is the command that makes the environment.
        PluginError: there is no such backend, or it needs no environment.
    """
    return lookup.find(recipe_for(registry or default_registry(), name, device), python=python)
