"""Run by every Python that starts with this folder on PYTHONPATH: so a mutant is the same in every process of a check.

The folder holds nothing else. The host's own module of this name, if there is one, runs after it.

Knows: that it stands in another's place.
Does not know: what is replaced or told (`hook`).
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

with contextlib.suppress(ImportError):  # another environment, without the suite: an engine's server
    from areal_conformance.mutate.hook import begin_here

    begin_here()

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  every process pays for an import of pathlib
_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize",
    [entry for entry in sys.path if os.path.abspath(entry or ".") != _here],  # noqa: PTH100
)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
