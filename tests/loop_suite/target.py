"""The loop as a target of the suite, whole or with one defect.

Knows: checks, mutants and the two pinned files.
Does not know: what a check does.
"""

from __future__ import annotations

from pathlib import Path

from areal_conformance.checks import collect as collect_checks
from areal_conformance.session import Session
from areal_conformance.target import Locator, Target
from areal_core.plugins.registry import Registry
from areal_proof.mutants import collect as collect_mutants

from . import checks, mutants
from .bench import LOOP_ADAPTER, LoopBench
from .unit import file_checks

INVENTORY = Path(__file__).with_name("inventory.json")
MATRIX = Path(__file__).with_name("matrix.json")
CHECKS = collect_checks(checks)
MUTANTS = collect_mutants(mutants)
LOOP = Target(
    locator=Locator(role="loop", name="areal"), registry=Registry(), adapter=LOOP_ADAPTER, origin="areal-core"
)


class _Own:
    """The loop with its rules and its other tests: `areal conformance mutate --suite tests.loop_suite.target:SUITE`."""

    target, checks = LOOP, {**CHECKS, **file_checks()}

    def session(self) -> Session:
        return session()


SUITE = _Own()


def session(mutant: str = "") -> Session:
    """Return a session on the loop, or on a mutant of it; close it."""
    target = MUTANTS[mutant].breaks(LOOP) if mutant else LOOP
    return Session(target, lambda _role, target: LoopBench(target))
