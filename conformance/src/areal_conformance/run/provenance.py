"""What exactly was judged: distribution, version, commit and a hash of the files of every plugin of a target.

The hash is the same for a wheel, an editable install and a checkout of the same files, and can be made by hand:

    cd src && find areal_mine -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | xargs sha256sum | sha256sum

Knows: where installed packages lie, and git.
Does not know: what the files mean; imports none of them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from areal_conformance.run.record import Source
from areal_conformance.target import Target

GIT_S = 10.0


def sources_of(target: Target) -> tuple[Source, ...]:
    """Return what every plugin of the target was made of: one, and for a pair two; then the user's own files."""
    sides = list(target.parts.values()) or [target]
    found = [_installed(side) for side in sides if side.manifest is not None]
    found += [_file(Path(path)) for path in target.locator.imports]
    return tuple(dict.fromkeys(one for one in found if one is not None))


def hash_of(folders: Iterable[Path]) -> tuple[str, int]:
    """Return the SHA-256 over packages, and the number of their files: as `sha256sum` lists them, caches left out."""
    files = {
        path.relative_to(folder.parent).as_posix(): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    lines = "".join(f"{_digest(files[name].read_bytes())}  {name}\n" for name in sorted(files))
    return (_digest(lines.encode()), len(files)) if files else ("", 0)


def commit(folder: Path) -> str:
    """Return the commit a folder is at, `+` behind it if files were changed, empty outside a repository."""
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if head and _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _installed(side: Target) -> Source | None:
    """Return where a plugin came from; None for one that no package holds: a user's file, which is told apart."""
    assert side.manifest is not None
    named = [text for text in (side.manifest.factory, side.manifest.conformance) if text]
    packages = {text.partition(":")[0].partition(".")[0] for text in named}
    folders = sorted(folder for package in packages for folder in _folders(package))
    if not folders:
        return None
    name, version = _distribution(side.origin)
    sha256, num_files = hash_of(folders)
    at = _from_url(name) or next(filter(None, map(_tracked, folders)), "")
    return Source(name=name or folders[0].name, version=version, commit=at, sha256=sha256, files=num_files)


def _distribution(origin: str) -> tuple[str, str]:
    """Return name and version of the distribution that an origin of the registry names."""
    name = origin.partition(" ")[0]
    try:
        return name, metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return "", ""


def _folders(package: str) -> Iterator[Path]:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place).is_dir():
            yield Path(place).resolve()


def _from_url(name: str) -> str:
    """Return the commit pip noted where it installed from a repository."""
    try:
        text = metadata.distribution(name).read_text("direct_url.json") if name else None
    except metadata.PackageNotFoundError:
        return ""
    told = json.loads(text) if text else {}
    return str(told.get("vcs_info", {}).get("commit_id", ""))[:12]


def _tracked(folder: Path) -> str:
    """Return the commit of a package that lies in a checkout; not of an environment that only lies inside one."""
    try:
        if not _git(folder, "ls-files", "--", "."):
            return ""
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _file(path: Path) -> Source:
    digest = _digest(path.read_bytes())
    return Source(name=path.name, commit=commit(path.parent) if _tracked(path.parent) else "", sha256=digest, files=1)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _git(folder: Path, *words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=GIT_S, check=True)
    return ended.stdout.strip()
