"""What must be the same on all hosts of a run, because it talks to itself across them.

Knows: areal's own packages on both ends of a relay, and what their messages look like.
Does not know: versions of Ray and Python, which Ray compares when a host joins; those of engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from areal_worker import schema

MESSAGES = "areal-core's messages"
_PACKAGES = ("areal-core", "areal-local", "areal-ray", "areal-worker")


def versions() -> dict[str, str]:
    """Return the version of each package here, and the fingerprint of what they say to one another."""
    return {**{name: _version(name) for name in _PACKAGES}, MESSAGES: schema.fingerprint()}


def difference(wanted: Mapping[str, str], found: Mapping[str, str], host: str) -> tuple[str, str]:
    """Return why a host cannot take part, and what to do about it; nothing where both are the same.

    Args:
        wanted: the controller's.
        found: the host's.
    """
    differing = [name for name in wanted if wanted[name] != found.get(name)]
    packages = [name for name in differing if name != MESSAGES]
    if packages:
        there = ", ".join(f"{name} {found.get(name) or 'not at all'}" for name in packages)
        here = ", ".join(f"{name} {wanted[name]}" for name in packages)
        return f"host {host} has {there}, the controller {here}", "install the controller's versions there"
    if differing:
        why = f"host {host} has another areal-core {wanted['areal-core']} than the controller: its messages differ"
        return why, "install both from one commit"
    return "", ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
