"""Real little distributions: modules, metadata and entry points in a folder, as pip leaves them.

Knows: what an installed distribution looks like on disk.
Does not know: pip; nothing is built or downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def write_distribution(
    site: Path,
    name: str,
    *,
    version: str = "1.0",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    modules: Mapping[str, str] | None = None,
) -> None:
    """Put a distribution into a folder that is, or will be, on `sys.path`.

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
        path = site.joinpath(*module.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in [parent for parent in path.parents if parent != site and parent.is_relative_to(site)]:
            (package / "__init__.py").touch()
        path.with_suffix(".py").write_text(dedent(source))
    importlib.invalidate_caches()


def manifest_source(role: str, name: str, *, claims: str = "{}", **fields: object) -> str:
    """Return the source of a module with a `MANIFEST`; `claims` is an expression, `fields` are written with `repr`."""
    given = {"contract": (1, 0), "factory": f"areal_{name}.engine:Engine", **fields}
    written = "".join(f"{key}={value!r}, " for key, value in given.items()) + f"claims={claims}"
    return (
        "from areal_core.plugins.claims import full, not_yet, unsupported, when\n"
        "from areal_core.plugins.manifest import Manifest\n"
        f"MANIFEST = Manifest(role={role!r}, name={name!r}, {written})\n"
    )
