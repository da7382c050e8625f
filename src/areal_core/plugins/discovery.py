"""Stage one: which plugins are installed, read from metadata alone.

Knows: entry-point groups, distributions, the AREAL_PLUGINS variable.
Does not know: what a plugin is; it imports none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import metadata

from attrs import frozen

from areal_core.contract.version import ROLES
from areal_core.plugins.catalogue import OWN

PREFIX = "areal."
HOOKS_GROUP = "areal.hooks"
NARROW = "AREAL_PLUGINS"
"""Names of plugins or distributions to admit beside areal-core's own parts; set but empty admits none."""


@frozen(kw_only=True)
class Entry:
    """One line of a distribution's entry points: `fsdp = areal_fsdp.manifest:MANIFEST` in group `areal.train`."""

    group: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        """Distribution and version, as errors and tables show it."""
        return f"{self.distribution} {self.version}"


@frozen(kw_only=True)
class Discovery:
    """What one look at the environment found.

    `roles` maps (role, name) to every entry claiming it: more than one is a duplicate.
    `hidden` are entries left out by AREAL_PLUGINS, `unmatched` the words of it that fit nothing.
    `unreadable` names distributions whose metadata cannot be parsed, with the reason.
    """

    roles: Mapping[tuple[str, str], tuple[Entry, ...]]
    hooks: tuple[Entry, ...]
    hidden: tuple[Entry, ...]
    unmatched: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]


def discover(environ: Mapping[str, str] | None = None) -> Discovery:
    """Read the entry points of every distribution on `sys.path`, importing nothing.

    One distribution with broken metadata does not hide the others. Where two directories
    hold the same distribution the first on `sys.path` counts, as it does for imports.
    """
    words = _narrowing_words(os.environ if environ is None else environ)
    unreadable: list[tuple[str, str]] = []
    found = list(_entries(unreadable))
    admitted = [entry for entry in found if _admitted(entry, words)]
    roles: dict[tuple[str, str], tuple[Entry, ...]] = {}
    for entry in admitted:
        role = entry.group.removeprefix(PREFIX)
        if role in ROLES:
            roles[role, entry.name] = (*roles.get((role, entry.name), ()), entry)
    return Discovery(
        roles=roles,
        hooks=tuple(entry for entry in admitted if entry.group == HOOKS_GROUP),
        hidden=tuple(entry for entry in found if not _admitted(entry, words)),
        unmatched=tuple(word for word in words or () if not any(_named(entry, word) for entry in found)),
        unreadable=tuple(unreadable),
    )


def _narrowing_words(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    text = environ.get(NARROW)
    if text is None:
        return None
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def _admitted(entry: Entry, words: tuple[str, ...] | None) -> bool:
    return words is None or entry.distribution in OWN or any(_named(entry, word) for word in words)


def _named(entry: Entry, word: str) -> bool:
    return word in (entry.name, entry.distribution, entry.distribution.removeprefix("areal-"))


def _entries(unreadable: list[tuple[str, str]]) -> Iterator[Entry]:
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            # The text is searched before it is parsed: of hundreds of distributions only ours are worth parsing.
            if PREFIX not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = distribution.metadata["Name"].replace("_", "-").lower()
            version = distribution.version
            points = [point for point in distribution.entry_points if point.group.startswith(PREFIX)]
        except Exception as exc:  # metadata is other people's files: any shape of damage must stay theirs
            where = getattr(distribution, "_path", "a distribution")  # its name may be what is broken
            unreadable.append((str(where), f"{type(exc).__name__}: {exc}"))
            continue
        if name in seen:
            continue
        seen.add(name)
        for point in points:
            yield Entry(group=point.group, name=point.name, value=point.value, distribution=name, version=version)
