"""Where our own packages are installed from, so that an engine's environment gets the same ones.

Knows: the `direct_url.json` an installer leaves (PEP 610).
Does not know: what is done with the answer.
"""

from __future__ import annotations

import json
from importlib import metadata
from urllib.parse import unquote, urlsplit

from areal_core.contract.errors import EngineMissing
from areal_core.plugins.install import pip_install


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed here."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def pip_arguments(distribution: str) -> list[str]:
    """Return what pip is given to install a distribution as it is installed here.

    A checkout stays a checkout (`-e /path`), a folder or an archive is installed again from where it
    came, and anything else by its version.

    Raises:
        EngineMissing: it is not installed here.
    """
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError as exc:
        raise EngineMissing(
            f"{distribution} is not installed here",
            why="an engine's environment gets the same packages of ours as the trainer's",
            fix=pip_install(distribution),
        ) from exc
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if not url:
        return [f"{distribution}=={found.version}"]
    parts = urlsplit(url)
    if parts.scheme != "file":
        return [f"{distribution} @ {_with_revision(url, origin)}"]
    path = unquote(parts.path)
    return ["-e", path] if origin.get("dir_info", {}).get("editable") else [path]


def _with_revision(url: str, origin: dict[str, dict[str, str]]) -> str:
    version_control = origin.get("vcs_info")
    return f"{version_control['vcs']}+{url}@{version_control['commit_id']}" if version_control else url
