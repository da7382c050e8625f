"""Which modules are a backend's own: what its factory imports of its own package, and what its checks run of it.

Knows: imports, by reading them; files.
Does not know: mutants.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from areal_conformance.mutate.source import Source
from areal_conformance.target import Target
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry

_ASIDE = ("testing", "tests")
"""Parts of a package that no run of it uses."""


@frozen(kw_only=True)
class Scope:
    """Modules to change, by name, and where a run's lines are looked for."""

    modules: dict[str, Path]
    aside: frozenset[str]
    """The manifest and the adapter: they say what the backend is held to."""
    home: str
    """The package around the factory: modules below it that run count too, though nothing imports them."""
    root: Path | None
    """Folder of that package; None for a user's file, or where modules were named."""


def scope_of(target: Target, also: Iterable[str] = (), only: Iterable[str] = ()) -> Scope:
    """Return the modules of a backend.

    Args:
        also: Packages whose modules count where the backend imports them: kits.
        only: Patterns of module names to take instead.

    Raises:
        ConfigError: there is no source of its factory, or nothing matches.
    """
    manifest = target.manifest
    if manifest is None:
        return _of_no_plugin(target, tuple(only))
    given = _users_file(target)
    factory = given.stem if given else _module(manifest.factory)
    start = given or source_of(factory)
    if start is None:
        raise ConfigError(
            f"{target.name!r} cannot be changed",
            why=f"the module {factory} has no Python source: it is compiled, or not there",
            fix="mutate a checkout of it, or name the modules written in Python with --module",
        )
    aside = {f"{package}.manifest" for package in _packages(factory)} | {_module(manifest.conformance or "")}
    aside.discard(factory)
    packages = (factory.partition(".")[0], *also)
    found = _matching(tuple(only), given) if only else _reached(factory, start, packages)
    kept = {name: path for name, path in found.items() if name not in aside and not _is_aside(name)}
    if not kept:
        raise _nothing_to_change(tuple(only) or (factory,))
    return Scope(
        modules=kept,
        aside=frozenset(aside),
        home=factory.rpartition(".")[0],
        root=None if only or "." not in factory else start.parent,
    )


def _of_no_plugin(target: Target, only: tuple[str, ...]) -> Scope:
    if not only:
        raise ConfigError(
            f"{target.name!r} is no plugin",
            why="nothing says which source is its own",
            fix="name a backend, or its modules with --module",
        )
    modules = {name: path for name, path in _matching(only).items() if not _is_aside(name)}
    if not modules:
        raise _nothing_to_change(only)
    return Scope(modules=modules, aside=frozenset(), home="", root=None)


def _nothing_to_change(asked: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"no module to change: {', '.join(asked)}",
        why="no source file of a module matches",
        fix="write names as they are imported, with * for any part: areal_mine.engine, areal_mine.*",
    )


def named(scope: Scope, path: Path) -> str | None:
    """Return the name of a module that was run and not found by reading; None where it is not the backend's own."""
    if scope.root is None or path.suffix != ".py" or not path.is_relative_to(scope.root):
        return None
    parts = path.relative_to(scope.root).with_suffix("").parts
    name = ".".join([scope.home, *parts])
    return None if name in scope.aside or _is_aside(name) or path in scope.modules.values() else name


def _users_file(target: Target) -> Path | None:
    """Return the user's own file that defines the backend, if one does."""
    for given in target.locator.imports:
        listed = Registry().add_file(given)
        if any((one.role, one.name) == (target.role, target.name) for one in listed):
            return Path(given).resolve()
    return None


def source_of(module: str) -> Path | None:
    """Return the file of a module; None for what is compiled, built in, or a folder alone. Does not run it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()


def _reached(factory: str, start: Path, packages: tuple[str, ...]) -> dict[str, Path]:
    """Follow imports, wherever in a module they stand, within the packages."""
    found, waiting = {factory: start}, [factory]
    while waiting:
        name = waiting.pop()
        for imported in _imports(Source.read(name, found[name])):
            if imported.partition(".")[0] in packages and imported not in found:
                path = source_of(imported)
                if path is not None:
                    found[imported] = path
                    waiting.append(imported)
    return dict(sorted(found.items()))


def _imports(source: Source) -> Iterator[str]:
    package = source.name if source.path.stem == "__init__" else source.name.rpartition(".")[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], base]).strip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _matching(patterns: tuple[str, ...], given: Path | None = None) -> dict[str, Path]:
    found = {}
    for pattern in patterns:
        if given is not None and fnmatch.fnmatchcase(given.stem, pattern):
            found[given.stem] = given
        top = pattern.partition(".")[0]
        path = source_of(top)
        if path is None:
            continue
        root = path.parent
        for file in sorted(root.rglob("*.py")) if path.stem == "__init__" else [path]:
            parts = file.relative_to(root).with_suffix("").parts if path.stem == "__init__" else ()
            name = ".".join([top, *parts]).removesuffix(".__init__")
            if fnmatch.fnmatchcase(name, pattern):
                found[name] = file
    return found


def _module(reference: str) -> str:
    """Return the module of `module:name`."""
    return reference.partition(":")[0]


def _packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_aside(name: str) -> bool:
    return any(part in _ASIDE for part in name.split("."))
