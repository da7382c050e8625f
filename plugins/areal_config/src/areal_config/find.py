"""What somebody means who names a key: a key, a section, a plugin's option, or what it may be called here.

Knows: the keys of a run with everything installed, and how near a word is to one.
Does not know: the names of other systems (`names`), or how anything is shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import attrs

from areal_config.keys import Key, keys, yaml_text
from areal_config.names.called import foreign_names
from areal_config.schema import GROUP, class_schema, plugin_options, run_schema
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import BackendNotFound, UnknownKey
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure


def run_keys() -> list[Key]:
    """Return every key of a run, in the order of its sections."""
    defaults: dict[str, Any] = unstructure(RunConfig())
    for entry in metadata.entry_points(group=GROUP):
        defaults[entry.name] = unstructure(entry.load()())
    return keys(run_schema(), defaults=defaults)


def option_keys(registry: Registry, holder: Key, name: str) -> list[Key]:
    """Return the keys a plugin takes under a key such as `actor.options`.

    Raises:
        BackendNotFound: nothing of that role has the name.
    """
    if name not in registry.names(holder.role):
        raise BackendNotFound(
            f"no {holder.role} plugin is called {name!r}",
            why=f"under {holder.path} stand the options of: {', '.join(registry.names(holder.role))}",
            fix=f"areal backends --role {holder.role}",
        )
    return class_keys(plugin_options(registry, holder.role).get(name), holder.path)


def class_keys(cls: type | None, prefix: str = "") -> list[Key]:
    """Return the keys of one class of options; none for None."""
    if cls is None or not attrs.has(cls):
        return []
    return keys(class_schema(cls), prefix)


def under(path: str, known: Sequence[Key]) -> list[Key]:
    """Return the keys of a section, at any depth."""
    return [key for key in known if key.path.startswith((f"{path}.", f"{path}[]"))]


def repeats(known: Sequence[Key]) -> dict[str, str]:
    """Return the sections that have the same keys with the same defaults as an earlier one, which is named."""
    first: dict[tuple[tuple[str, str], ...], str] = {}
    found = {}
    for section in (key for key in known if key.section):
        inside = tuple(
            (key.path.removeprefix(section.path), yaml_text(None if key.needed else key.default))
            for key in known
            if key.path.startswith(f"{section.path}.") and not key.section
        )
        if inside and first.setdefault(inside, section.path) != section.path:
            found[section.path] = first[inside]
    return found


def same_name(word: str, known: Sequence[Key]) -> list[str]:
    """Return the paths that end as the word does: `lr` is at the end of `actor.optimizer.lr`.

    Roles and places that repeat a section are told once, by the first.
    """
    ends = [key.path for key in known if key.path.endswith(f".{word.rpartition('.')[2]}")]
    first: dict[str, str] = {}
    for path in ends:
        first.setdefault(".".join(path.split(".")[-2:]), path)
    return list(first.values())


def unknown(word: str, known: Sequence[Key]) -> UnknownKey:
    """Return the error for a name no key has."""
    same = same_name(word, known)
    told = "" if same else foreign_names(word)
    near = same or difflib.get_close_matches(word, [key.path for key in known], n=3)
    if not near:
        ends = difflib.get_close_matches(word.rpartition(".")[2], sorted({key.name for key in known}), n=2)
        near = [path for end in ends for path in same_name(end, known)]
    return UnknownKey(
        f"a run has no key {word!r}",
        why="areal config lists those it has",
        fix=told or (f"did you mean {' or '.join(repr(path) for path in near[:3])}?" if near else "areal config"),
    )
