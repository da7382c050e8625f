"""What areal-core asks of this kit: the interpreter of an engine, given the manifest that names its locks.

Knows: that a manifest and a device make a recipe.
Does not know: where interpreters are looked for (`lookup`).
"""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest
from areal_serving.environments import lookup
from areal_serving.environments.recipe import read_recipe


class Environments:
    """Satisfies `areal_core.plugins.extensions.EngineEnvironments`."""

    def find(
        self, manifest: Manifest, device: str, *, python: str | None = None, worker: str | None = None
    ) -> lookup.EnginePython:
        """Return the interpreter for a plugin's engine on a device; raises EngineMissing as `lookup.find`."""
        return lookup.find(read_recipe(manifest, device), python=python, worker=worker)


ENVIRONMENTS = Environments()
