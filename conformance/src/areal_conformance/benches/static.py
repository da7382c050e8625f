"""What level 0 looks at: a plugin's manifest, metadata and source, in processes of their own where importing tells.

Knows: where a plugin's files are, and how to run Python with modules taken away.
Does not know: engines; it never starts one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from areal_conformance.benches.base import Bench
from areal_conformance.outcome import HarnessError, Inconclusive, Violation
from areal_core.contract.errors import ArealError
from areal_core.plugins.discovery import Entry
from areal_core.plugins.manifest import Manifest

HEAVY = ("torch", "transformers", "vllm", "sglang", "megatron", "torch_npu", "ray", "tensordict", "numpy")
"""Modules a listing of plugins must not pay for."""

LIMIT_S = 120.0

_PRELUDE = """
import importlib.abc, json, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None
sys.meta_path.insert(0, Absent())
"""


class StaticBench(Bench):
    """Bench of the checks that start nothing."""

    @property
    def manifest(self) -> Manifest:
        """Return the manifest under test."""
        if self.target.manifest is None:
            raise HarnessError(f"{self.target.role} targets have no manifest")
        return self.target.manifest

    @property
    def entry(self) -> Entry:
        """Return the entry point the plugin is found by; Inconclusive for one from a file or in hand."""
        entries = self.target.registry.discovery.roles.get((self.target.role, self.target.name), ())
        if not entries or self.target.origin != entries[0].origin:
            told = f"it comes from {self.target.origin}"
            raise Inconclusive(f"{self.target.name!r} is not an installed distribution: {told}")
        return entries[0]

    @property
    def packaged(self) -> bool:
        """Whether the plugin is an installed distribution; if not, what is asked of packages is not asked: a note."""
        try:
            return bool(self.entry)
        except Inconclusive as reason:
            self.notes.append(f"not looked at: {reason}")
            return False

    @property
    def distribution(self) -> metadata.Distribution:
        """Return the installed distribution."""
        return metadata.distribution(self.entry.distribution)

    def python(self, code: str, *, absent: Sequence[str] = ()) -> Any:
        """Run code in a fresh interpreter in which `absent` modules cannot be imported; return the json it prints last.

        Violation with its last lines if it raised.
        """
        script = _PRELUDE.format(absent=set(absent)) + code
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, env=environ, check=False
        )
        if done.returncode != 0:
            raise Violation("\n".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def factory(self) -> Any:
        """Load the factory. Any: a class or a function. Inconclusive where its engine is not installed."""
        probe = self.target.registry.probe(self.target.role, self.target.name)
        if probe.missing:
            raise Inconclusive(f"the engine is not installed: missing {', '.join(probe.missing)}")
        return self.target.registry.load(self.target.role, self.target.name)

    def built(self) -> Any:
        """Return an instance, not started; `factory` decides whether that can be."""
        self.factory()
        try:
            return self.build()
        except ArealError as error:
            raise Violation(f"the factory cannot be called with default options: {error}") from error

    def engine_sources(self) -> Iterator[tuple[Path, ast.Module]]:
        """Yield the files that come with the factory, parsed: of its own package, and of what these import.

        A distribution may hold several plugins, each with requirements of its own.
        """
        module = self.manifest.factory.partition(":")[0]
        own = f"{module.rpartition('.')[0] or module}."
        files = self._named()
        for name in _reached(files, [name for name in files if f"{name}.".startswith(own)]):
            yield files[name]

    def factory_sources(self) -> Mapping[str, ast.Module]:
        """Return the factory's module, parsed, and all of its distribution that it imports at any depth, by name."""
        files = self._named()
        return {name: files[name][1] for name in _reached(files, [self.manifest.factory.partition(":")[0]])}

    def _named(self) -> dict[str, tuple[Path, ast.Module]]:
        """Return the files of the plugin by the names of their modules; one file by its module's alone."""
        module = self.manifest.factory.partition(":")[0]
        top, files = module.partition(".")[0], dict(self.sources())
        places = {path.with_suffix("") if path.name != "__init__.py" else path.parent: path for path in files}
        root = min((place for place in places if place.name == top), key=lambda place: len(place.parts), default=None)
        if root is None:  # one file
            return dict(zip((module,), files.items(), strict=False))
        named = {".".join((top, *place.relative_to(root).parts)): path for place, path in places.items()}
        return {name: (path, files[path]) for name, path in named.items()}

    def sources(self) -> Iterator[tuple[Path, ast.Module]]:
        """Yield every Python file of the plugin, parsed: its top-level package, or its one module."""
        module = self.manifest.factory.partition(":")[0]
        own_file = Path(self.target.origin)
        if own_file.suffix == ".py" and own_file.is_file():  # a user's own file, added by its path
            yield own_file, ast.parse(own_file.read_text(encoding="utf-8"), filename=str(own_file))
            return
        found = find_spec(module.partition(".")[0])
        if found is None or found.origin is None:
            raise Inconclusive(f"{module} has no source to look at")
        origin = Path(found.origin)
        if origin.parent.name in ("areal_core", "areal_proof"):  # packages of many plugins: its own module counts
            own = find_spec(module)
            files = [Path(own.origin)] if own is not None and own.origin else []
        else:
            files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
        for path in files:
            yield path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _reached(files: Mapping[str, tuple[Path, ast.Module]], begun: Sequence[str]) -> Iterator[str]:
    """Yield the names of some of these modules, and of those that they import, at any depth."""
    waiting = list(begun)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        path, tree = files[name]
        yield name
        waiting.append(name.rpartition(".")[0])
        waiting += imported(tree, name if path.name == "__init__.py" else name.rpartition(".")[0])


def imported(tree: ast.Module, package: str = "") -> set[str]:
    """Return the modules a source imports at any depth but for type checkers, with what is taken from each.

    Args:
        package: the package it lies in, which relative imports start from.
    """
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(inner) for node in typed for line in node.body for inner in ast.walk(line)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join((*above, *filter(None, (node.module,))))
            found.update((module, *(f"{module}.{alias.name}" for alias in node.names)))
    return found
