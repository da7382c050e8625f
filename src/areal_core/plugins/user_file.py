"""A user's own .py file: run once, and asked for what it marked.

Knows: how a file becomes a module and its marked objects become providers.
Does not know: which names are taken; the registry does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from areal_core.contract.errors import ConfigError
from areal_core.contract.version import CONTRACT
from areal_core.plugins import describe as description
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import Mark, marks_of
from areal_core.plugins.provider import Factory, Provider

if TYPE_CHECKING:
    from collections.abc import Iterator


def resolve(path: str | Path) -> Path:
    """Return the absolute path of a user's file.

    Raises:
        ConfigError: there is no such file.
    """
    wanted = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  raise for no name, however odd
    if not os.path.isfile(wanted):  # noqa: PTH113
        raise ConfigError(
            f"imports: there is no file {str(path)!r}",
            why=f"looked for {wanted}",
            fix="paths are relative to the directory areal was started in; check the spelling",
        )
    return Path(wanted).resolve()


def load_file(path: Path) -> list[Provider]:
    """Run the file and return what it marked, in the order it defines it.

    Raises:
        ConfigError: the file raises, or marks nothing.
        ManifestError, ContractMismatch: a backend's manifest is wrong, or for another contract.
    """
    module = _run(path)
    providers = [_provider(mark, obj, path) for obj in _defined(module) for mark in marks_of(obj)]
    if not providers:
        raise ConfigError(
            f"imports: {path} defines nothing areal can use",
            why="no function or class in it is decorated",
            fix='decorate one: from areal_core import reward; @reward("name") above the function',
        )
    return providers


def _run(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"areal_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"imports: {path} is not a Python file", fix="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as for any import: annotations and pickling look the module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise ConfigError(
            f"imports: {path} raises {type(exc).__name__}",
            why=f"{_place(exc, path)}: {exc}",
            fix=f"run it alone: python {path}",
        ) from exc
    return module


def _place(exc: BaseException, path: Path) -> str:
    """Return `file:line` where the user's own code was when it raised."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{exc.filename}:{exc.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(exc.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _defined(module: ModuleType) -> Iterator[object]:
    seen: set[int] = set()
    for obj in vars(module).values():
        if getattr(obj, "__module__", None) == module.__name__ and id(obj) not in seen:
            seen.add(id(obj))
            yield obj


def _provider(mark: Mark, obj: object, path: Path) -> Provider:
    assert callable(obj)
    # A marked function that is the thing itself needs no building: its factory returns it.
    function = mark.role == "reward" or (mark.role in ("estimator", "accept") and not isinstance(obj, type))
    factory: Factory = (lambda: obj) if function and mark.config is None else obj
    manifest = _described(mark, obj, path)
    keywords = mark.role == "dataset" and mark.config is None
    return Provider(manifest=manifest, factory=factory, config=mark.config, origin=str(path), keywords=keywords)


def _described(mark: Mark, obj: object, path: Path) -> Manifest:
    """Return the manifest the mark brings, checked as an installed one, or one made from the mark's name."""
    if mark.manifest is not None:
        description.check_manifest(mark.manifest, f"{description.noun(mark.role)} {mark.name!r} of {path}", str(path))
        return mark.manifest
    return Manifest(
        role=mark.role,
        name=mark.name,
        contract=CONTRACT[mark.role],
        factory=f"{path.stem}:{getattr(obj, '__qualname__', mark.name)}",
        devices=(mark.name,) if mark.role == "device" else ("cpu",),
        summary=(getattr(obj, "__doc__", None) or "").strip().partition("\n")[0],
    )
