"""Real little distributions for tests of the plugin system: modules, metadata and entry points in a folder.

Knows: what an installed distribution looks like on disk.
Does not know: pip; nothing is built or downloaded.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

Run = Callable[..., subprocess.CompletedProcess[str]]
"""`areal_command(site, folder)`: takes the words, and variables of the environment by name."""


def areal_command(site: Path, folder: Path) -> Run:
    """Return a function that runs `areal WORDS...` as a process in `folder`, with the distributions of `site`."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "AREAL_PLUGINS"}
        env = {**inherited, "PYTHONPATH": str(site), "COLUMNS": "200", **environ}
        command = [sys.executable, "-m", "areal_core.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=100)

    return run


def write_distribution(
    site: Path,
    name: str,
    *,
    version: str = "1.0",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    modules: Mapping[str, str] | None = None,
) -> None:
    """Put a distribution into a folder that is, or will be, on `sys.path`.

    Example:
        write_distribution(site, "areal-toy", entry_points={"areal.train": {"toy": "areal_toy:MANIFEST"}},
                           modules={"areal_toy": manifest_source("train", "toy")})

    Args:
        entry_points: group -> name -> `module:object`.
        modules: dotted module name -> its source; packages get an empty `__init__`.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (entry_points or {}).items()
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items()) for group, names in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, source in (modules or {}).items():
        _write_module(site, module, dedent(source))
    importlib.invalidate_caches()


def manifest_source(role: str, name: str, *, claims: str = "{}", **fields: object) -> str:
    """Return the source of a module with a `MANIFEST`.

    Args:
        claims: an expression, for example `'{"parallel.data": full()}'`.
        fields: further fields of the manifest, written with `repr`.
    """
    given = {"contract": (1, 0), "factory": f"areal_{name}.engine:Engine", **fields}
    written = "".join(f"{key}={value!r}, " for key, value in given.items()) + f"claims={claims}"
    return (
        "from areal_core.plugins.claims import full, not_yet, unsupported, when\n"
        "from areal_core.plugins.manifest import Manifest\n"
        f"MANIFEST = Manifest(role={role!r}, name={name!r}, {written})\n"
    )


def _write_module(site: Path, module: str, source: str) -> None:
    *packages, last = module.split(".")
    folder = site
    for package in packages:
        folder = folder / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{last}.py").write_text(source)
