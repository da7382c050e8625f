"""A run in the making, and what is left of the yaml it is made from.

Knows: which keys have been read, what was set, and what the author must be told.
Does not know: what any key means (`rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Plain = Any  # plain data of a yaml


class Draft:
    """The old yaml by dotted keys, the new one as it grows, and two lists of notes."""

    def __init__(self, old: Mapping[str, Plain]) -> None:
        self._left = dict(_flat(old, ""))
        self.new: dict[str, Plain] = {}
        self.decide: list[str] = []
        """What the new yaml needs from its author."""
        self.lost: list[str] = []
        """What the old yaml said and the new one does not."""

    def has(self, prefix: str) -> bool:
        """Tell whether anything but null stands at a key or below it."""
        return any(_at(key, prefix) and value is not None for key, value in self._left.items())

    def take(self, key: str, default: Plain = None) -> Plain:
        """Return a value and count it as read; the default where there is none, or null."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def drop(self, prefix: str) -> bool:
        """Count a key and all below it as read; tell whether any of it said something."""
        found = [key for key in self._left if _at(key, prefix)]
        values = [self._left.pop(key) for key in found]
        return any(value not in (None, False, "", 0) for value in values)

    def left(self, prefix: str = "") -> dict[str, Plain]:
        """Return what nobody has read yet, at a key or below it."""
        return {key: value for key, value in self._left.items() if not prefix or _at(key, prefix)}

    def set(self, key: str, value: Plain) -> None:
        """Set a key of the new yaml; null sets nothing."""
        if value is None:
            return
        *sections, last = key.split(".")
        here = self.new
        for section in sections:
            here = here.setdefault(section, {})
        here[last] = value


def _flat(value: Plain, prefix: str) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _at(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")
