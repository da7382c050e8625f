"""What mutants are held to: a backend and the suite's checks of its role, or something else with checks of its own.

Told to other processes as JSON. Loads nothing but the standard library until it is asked for something.

Knows: where target, checks and session come from.
Does not know: mutants.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from areal_conformance.check import Check
    from areal_conformance.session import Session
    from areal_conformance.target import Target

Told = Mapping[str, Any]
"""A subject as JSON: {"locator": {...}}, or {"suite": "module:name"} of an `OwnSuite`."""


class OwnSuite(Protocol):
    """Checks of something that is no plugin, for example our loop."""

    @property
    def target(self) -> Target:
        """What is checked."""

    @property
    def checks(self) -> Mapping[str, Check]:
        """By id."""

    def session(self) -> Session:
        """Return a new session; who asks closes it."""


def target_of(told: Told) -> Target:
    """Return what is checked.

    Raises:
        ArealError: there is no such backend.
    """
    if "suite" in told:
        return _suite(told).target
    from areal_conformance.target import Locator, locate

    return locate(Locator(**told["locator"]))


def checks_for(told: Told) -> Mapping[str, Check]:
    """Return the checks of its role, by id."""
    if "suite" in told:
        return _suite(told).checks
    from areal_conformance.checks import checks_of

    return {check.id: check for check in checks_of(told["locator"]["role"])}


def session_of(told: Told) -> Session:
    """Return a new session on it."""
    if "suite" in told:
        return _suite(told).session()
    from areal_conformance.session import Session

    return Session(target_of(told))


def load(subject: Told) -> None:
    """Import all that its checks import: the suite, the adapter, the backend."""
    from areal_conformance import session  # noqa: F401  as a check would
    from areal_conformance.benches import bench_for

    target = target_of(subject)
    checks_for(subject)
    if "suite" in subject:
        return
    bench_for(target.role, target).close()
    for side in (target, *target.parts.values()):
        if side.manifest is not None:
            side.registry.load(side.role, side.name)


def _suite(told: Told) -> OwnSuite:
    module, _, name = str(told["suite"]).partition(":")
    try:
        suite: OwnSuite = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        from areal_core.contract.errors import ConfigError

        raise ConfigError(
            f"there is no suite {told['suite']!r}",
            why=f"{type(error).__name__}: {error}",
            fix="write module:name; a module of the folder you are in needs PYTHONPATH=.",
        ) from error
    return suite
