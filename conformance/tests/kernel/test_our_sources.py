"""What the suite asks of a plugin's source, asked of every plugin that is installed beside it.

A certificate asks it too, but of one plugin: whoever changes a package that several share would hear of it late.
"""

from __future__ import annotations

import pytest

from areal_conformance.benches.static import StaticBench
from areal_conformance.checks.static import source
from areal_conformance.target import Locator, locate
from areal_core.contract.version import ROLES
from areal_core.plugins.registry import default_registry

CHECKS = (source.no_pickle, source.no_remote_code, source.loopback, source.no_not_implemented, source.no_swallowing)


def _one_of_each_package() -> list[Locator]:
    registry = default_registry()
    found: dict[str, Locator] = {}
    for role in ROLES:
        for name in registry.names(role):
            manifest = registry.describe(role, name)
            package = manifest.factory.partition(".")[0]
            found.setdefault(package, Locator(role=role, name=name, device=manifest.devices[0]))
    return list(found.values())


@pytest.mark.parametrize("locator", _one_of_each_package(), ids=lambda one: f"{one.role}-{one.name}")
def test_sources_hold_nothing_that_no_plugin_may_hold(locator: Locator) -> None:
    """Pickle, code that came with a model, addresses of all interfaces, methods that only raise, lost errors."""
    bench = StaticBench(locate(locator))

    for check in CHECKS:
        check.body(bench)
