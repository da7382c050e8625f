"""Resolving a lock from its recipe, for plugin maintainers: `areal env lock NAME --device DEVICE`.

Knows: how a recipe becomes the input of `uv pip compile`.
Does not know: whether the packages work together; that is tested, and the recipe's `status` says so.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from areal_core.contract.errors import EngineMissing
from areal_serving.environments.installers import find_uv, pip_config, uv_environ, uv_flags
from areal_serving.environments.recipe import Lock, Recipe, write_lock

_NEVER = 'python_version < "3"'
"""The marker of a requirement that nothing meets, which takes a package out of a resolution."""


def write(recipe: Recipe, *, keep: bool = False) -> Lock:
    """Resolve what a recipe asks for, and write the lock beside it.

    Args:
        keep: take the versions of the lock there is, and only look up their hashes again.

    Raises:
        EngineMissing: uv is not here, or there is no solution; its last lines are in `why`.
    """
    lock = resolve(recipe, recipe.lock().pins if keep else ())
    title = f"Every package of the environment of {recipe.name} for {recipe.device}, installed without dependencies."
    recipe.lock_file.write_text(write_lock(lock, title), encoding="utf-8")
    return lock


def resolve(recipe: Recipe, pins: Sequence[str] = ()) -> Lock:
    """Resolve what a recipe and our own packages ask for, with the newest versions that fit, and the files' hashes.

    Args:
        pins: if given, these packages and no others.

    Raises:
        EngineMissing: as `write`.
    """
    if recipe.absent:
        recipe.lock()  # raises, and says why
    uv = find_uv()
    if uv is None:
        raise EngineMissing("a lock is resolved with uv", why="uv is not installed", fix="pip install uv")
    config = pip_config()
    with tempfile.TemporaryDirectory(prefix="areal-lock-") as scratch:
        wanted, overrides = Path(scratch) / "wanted.in", Path(scratch) / "overrides.txt"
        asked = pins or [*recipe.requirements, *our_requirements(recipe)]
        wanted.write_text("\n".join(asked) + "\n", encoding="utf-8")
        left_out = (f"{name} ; {_NEVER}" for name in recipe.leave_out)
        overrides.write_text("\n".join([*recipe.overrides, *left_out]) + "\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(uv, "pip", "compile", "--quiet", "--format", "pylock.toml", "--generate-hashes"),
                *(("--no-deps",) if pins else ()),
                *("--python-version", recipe.python, "--python-platform", recipe.platform),
                *("--override", str(overrides), *uv_flags(config), str(wanted)),
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **uv_environ(config)},
        )
    if done.returncode != 0:
        raise EngineMissing(
            f"{recipe.name} for {recipe.device} cannot be resolved",
            why="\n       ".join(done.stderr.strip().splitlines()[-8:]),
            fix=f"change the requirements or the overrides in {recipe.folder / 'recipe.toml'}",
        )
    hashes = {f"{each['name']}=={each['version']}": _hashes(each) for each in tomllib.loads(done.stdout)["packages"]}
    facts = _facts(recipe, Lock(pins=list(hashes)))
    return Lock(pins=list(hashes), facts=facts, hashes=hashes)


def _hashes(package: Mapping[str, Any]) -> tuple[str, ...]:  # Any: a package of pylock.toml, PEP 751
    """Return those of its wheels that fit, or else of its source."""
    files = package.get("wheels") or [package[kind] for kind in ("sdist", "archive") if kind in package]
    return tuple(file["hashes"]["sha256"] for file in files)


def our_requirements(recipe: Recipe) -> list[str]:
    """Return what areal-core (with torch) and the plugin ask for, so that a worker can run there as well."""
    found = [*_requirements("areal-core", "torch"), *_requirements(recipe.plugin, "")]
    replaced = {canonicalize_name(Requirement(text).name) for text in recipe.requirements}
    return [str(r) for r in found if canonicalize_name(r.name) not in {*replaced, "areal-core", recipe.plugin}]


def _requirements(distribution: str, extra: str) -> Iterator[Requirement]:
    for text in metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            yield requirement


def _facts(recipe: Recipe, lock: Lock) -> dict[str, str]:
    facts = {
        "engine": f"{recipe.distribution} {lock.version(recipe.distribution)}",
        "python": recipe.python,
        "platform": recipe.platform,
        "status": recipe.status,
        "made": f"areal env lock {recipe.name} --device {recipe.device}",
        "left out": ", ".join(recipe.leave_out),
        "overrides": ", ".join(recipe.overrides),
    }
    return {key: value for key, value in facts.items() if value}
