"""The pip command that brings a distribution: from the checkout this core runs from, else by name.

Knows: the folders of a checkout, and what their pyproject files depend on.
Does not know: what is asked for, or why.
"""

from __future__ import annotations

import shlex
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[3]
"""The root of the repository, where this file lies in one."""


def pip_install(requirement: str, *, options: str = "") -> str:
    """Return the command that brings a distribution, perhaps with extras.

    Within a checkout every folder that is not installed yet is named, because no index has them.

    Example: `pip install 'areal-vllm[engine]'`, or `pip install -e kits/areal_serving -e 'plugins/areal_vllm[engine]'`
    """
    folders: dict[Path, set[str]] = {}
    _collect(Requirement(requirement), folders, set())
    words = " ".join(f"-e {shlex.quote(_shown(path, extras))}" for path, extras in folders.items())
    if words and options == "-U":
        return f"git pull, then pip install {words}"
    return " ".join(filter(None, ("pip install", options, words or shlex.quote(requirement))))


def _collect(wanted: Requirement, found: dict[Path, set[str]], seen: set[Requirement]) -> None:
    """Add the folders of what a distribution of the checkout depends on and lacks, then its own."""
    path = _folder(wanted.name)
    if path is None or wanted in seen:
        return
    asked_for = not seen
    seen.add(wanted)
    project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    for text in chain(project.get("dependencies", ()), *(extras.get(extra, ()) for extra in wanted.extras)):
        _collect(Requirement(text), found, seen)
    if asked_for or installed_version(wanted.name) is None:
        found.setdefault(path, set()).update(wanted.extras)


def _folder(distribution: str) -> Path | None:
    name = distribution.replace("-", "_")
    root = CHECKOUT
    places = {"areal_core": root, "areal_conformance": root / "conformance"}
    places["areal_conformance_proof"] = root / "conformance" / "proof"
    known = [places[name]] if name in places else [root / "kits" / name, root / "plugins" / name]
    # A site-packages folder has neither: there the distribution is called by its name.
    return next((path for path in known if (path / "pyproject.toml").is_file()), None)


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution that is installed, None where it is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _shown(path: Path, extras: set[str]) -> str:
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}" + (
        f"[{','.join(sorted(extras))}]" if extras else ""
    )
