"""Versions of adapters in a server: each has a name of its own there, so a request keeps the one it began with.

Knows: which version of a name later requests get, and which older ones are still in use.
Does not know: HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.errors import CapabilityError, VersionRegressed


@frozen(kw_only=True)
class ServedAdapter:
    """One version of one adapter. `name` is the user's, `served` the server's."""

    name: str
    version: int
    path: Path
    served: str = field()

    @served.default
    def _(self) -> str:
        return f"{self.name}@{self.version}"


class Adapters:
    """What is loaded. One event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._current: dict[str, ServedAdapter] = {}
        self._old: list[ServedAdapter] = []
        self._in_use: Counter[str] = Counter()

    def __iter__(self) -> Iterator[ServedAdapter]:
        """Iterate over what the server must have."""
        return iter([*self._old, *self._current.values()])

    def admit(self, name: str, path: Path, version: int) -> ServedAdapter:
        """Return what is to be loaded.

        Raises:
            VersionRegressed: this version of the name, or a newer one, is loaded.
            CapabilityError: more names than the options make room for.
        """
        known = self._current.get(name)
        if known is not None and version <= known.version:
            raise VersionRegressed(
                f"version {version} of adapter {name!r} was offered", why=f"version {known.version} serves already"
            )
        if known is None and len(self._current) >= self._limit:
            raise CapabilityError(
                f"adapter {name!r} has no place",
                why=f"rollout.options.max_adapters is {self._limit}",
                fix="raise it, or unload another adapter first",
            )
        return ServedAdapter(name=name, version=version, path=path)

    def loaded(self, adapter: ServedAdapter) -> None:
        """Let later requests for its name have it."""
        before = self._current.get(adapter.name)
        if before is not None:
            self._old.append(before)
        self._current[adapter.name] = adapter

    def forget(self, name: str) -> None:
        """Let no later request have the name."""
        before = self._current.pop(name, None)
        if before is not None:
            self._old.append(before)

    def find(self, name: str) -> ServedAdapter:
        """Return what a request that names it gets.

        Raises:
            CapabilityError: nothing of that name is loaded.
        """
        if name not in self._current:
            raise CapabilityError(
                f"adapter {name!r} is not loaded",
                why=f"loaded are {', '.join(sorted(self._current)) or 'none'}",
                fix="name it and its folder under rollout.adapters",
            )
        return self._current[name]

    def begin(self, adapter: ServedAdapter) -> None:
        """Take note that a request uses it."""
        self._in_use[adapter.served] += 1

    def end(self, adapter: ServedAdapter) -> None:
        """Take note that a request does so no more."""
        self._in_use[adapter.served] -= 1

    def unused(self) -> list[ServedAdapter]:
        """Return, and forget, replaced versions that no request uses."""
        idle = [adapter for adapter in self._old if not self._in_use[adapter.served]]
        self._old = [adapter for adapter in self._old if self._in_use[adapter.served]]
        return idle
