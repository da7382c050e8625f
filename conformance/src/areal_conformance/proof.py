"""Backends broken on purpose, where the package that proves the suite is installed.

Knows: what is asked of it.
Does not know: any mutant; `areal-conformance-proof` holds them, and nobody needs it to check a backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from areal_core.plugins.extensions import extension, need

if TYPE_CHECKING:
    from areal_conformance.target import Locator, Target


class Mutant(Protocol):
    """A backend with one fault, and the checks that must find it."""

    name: str
    of: str
    """`role/name` of the backend it breaks."""
    ranks: int
    killers: tuple[str, ...]
    defect: str
    """What is wrong with it, in one sentence."""

    def target(self, locator: Locator) -> Target:
        """Return the broken backend as a target."""


class Proof(Protocol):
    """Extension `proof`."""

    def all_mutants(self) -> Mapping[str, Mutant]:
        """Return every mutant by name."""

    def mutant_named(self, name: str) -> Mutant:
        """Return one mutant. Raises ConfigError: there is none; names the near ones."""


def proof() -> Proof:
    """Return the mutants. Raises EngineMissing: they are not installed."""
    found: Proof = need("proof", "a deliberately broken backend")
    return found


def known_mutants() -> Mapping[str, Mutant]:
    """Return every mutant by name, none where they are not installed."""
    found: Proof | None = extension("proof")
    return found.all_mutants() if found is not None else {}
