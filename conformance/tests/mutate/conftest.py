"""A suite that is nobody's backend: one check of one function."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SUITE = """\
from areal_conformance.adapter import Adapter
from areal_conformance.benches.base import Bench
from areal_conformance.check import Check
from areal_conformance.session import Session
from areal_conformance.target import Locator, Target
from areal_core.plugins.registry import Registry
from SUMS import double


def doubled(bench):
    assert double(3) == 6


class Suite:
    target = Target(
        locator=Locator(role="sums", name="theirs"), registry=Registry(), adapter=Adapter(), origin="theirs"
    )
    checks = {
        "sums.doubled": Check(id="sums.doubled", body=doubled, level=1, law=1, spec="index", title="6.", tier="core")
    }

    def session(self):
        return Session(self.target, lambda _role, target: Bench(target))


SUITE = Suite()
"""


@pytest.fixture
def suite_of() -> Callable[[str], str]:
    """Return the source of a suite that checks `double` of a module: two of a name would meet in one process."""
    return lambda module: SUITE.replace("SUMS", module)
