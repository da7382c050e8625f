"""The compatibility table of `docs/contract/versions.md`, made from manifests, pyproject files and locks.

    python docs/compatibility.py          # writes it into the page

Knows: where a plugin says what it needs. Does not know: what was tested; reports of the suite tell.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from areal_core.plugins.registry import Registry

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/contract/versions.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"
HEAD = ("plugin", "version", "core", "contract", "engine", "torch")
_LIBRARIES = ("torch", "transformers", "tensordict", "safetensors", "xxhash", "numpy")


def table() -> str:
    """Return the table of every engine plugin here."""
    lines = [" | ".join(("", *cells, "")).strip() for cells in (HEAD, ("---",) * len(HEAD), *rows())]
    return "\n".join(lines) + "\n"


def rows() -> Iterator[tuple[str, ...]]:
    """Yield one row for every train and inference engine, in the order of their names."""
    registry = Registry(environ={})
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        entries = project.get("entry-points", {})
        for role in ("train", "infer"):
            for name in entries.get(f"areal.{role}", {}):
                manifest = registry.describe(role, name)
                needs = [Requirement(text) for text in project["dependencies"]]
                (core,) = (_range(each) for each in needs if each.name == "areal-core")
                wanted = [*manifest.requires, *project.get("optional-dependencies", {}).get(manifest.extra or "", ())]
                engine, torch = _locked(path.parent) if manifest.environment else _required(wanted)
                contract = ".".join(map(str, manifest.contract))
                yield f"`{name}` ({project['name']})", project["version"], core, f"{role} {contract}", engine, torch


def _required(texts: list[str]) -> tuple[str, str]:
    """Return engine and torch as requirements, the core's minimum of torch where a plugin names none."""
    known = {each.name: each for each in map(Requirement, texts)}
    others = {name: each for name, each in known.items() if name not in _LIBRARIES and not name.startswith("areal-")}
    engines = [f"{name} {_range(each)}" for name, each in others.items()]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    (minimum,) = (_range(each) for each in map(Requirement, extras) if each.name == "torch")
    return ", ".join(sorted(engines)) or "torch itself", _range(known["torch"]) if "torch" in known else minimum


def _range(requirement: Requirement) -> str:
    return ", ".join(sorted(map(str, requirement.specifier), reverse=True))


def _locked(folder: Path) -> tuple[str, str]:
    """Return engine and torch as the locks of an environment have them, by device."""
    (locks,) = folder.glob("src/*/locks")
    recipe = tomllib.loads((locks / "recipe.toml").read_text())
    engines, torches = [], []
    for lock in sorted(locks.glob("*.txt")):
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE))
        engine = recipe[lock.stem].get("distribution", recipe["engine"])
        engines.append(f"{engine} {pinned[engine]} ({lock.stem})")
        torches.append(f"{pinned['torch']} ({lock.stem})")
    return ", ".join(engines), ", ".join(torches)


def page(text: str) -> str:
    """Return the page with its table renewed."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    sys.stdout.write(table())
