"""The loop keeps its laws, every broken loop is caught, and no check was lost on the way out of the suite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from areal_conformance import inventory
from areal_conformance.check import CHECKED_ROLES, Check
from areal_conformance.outcome import Outcome
from areal_proof.incidents import ROWS
from areal_proof.selftest import judge, matrix

from .target import CHECKS, INVENTORY, MATRIX, MUTANTS, session

LONG = "loop.machine.staleness"
"""Takes half a minute: twenty-five random orders of operations."""
OF_A_MUTANT = ("TypeError", "AttributeError", "NameError", "KeyError", "UnboundLocalError")
"""What a mutant raises that no longer fits the part it takes the place of: it would die of any check."""
ONCE = {"checks": 728, "mutants": 997}
"""How many the suite had, the loop's included, when the loop's left it."""


def _pairs() -> list[tuple[str, str]]:
    return [(mutant.name, killer) for mutant in MUTANTS.values() for killer in mutant.killers]


def _cases(rows: Iterable[tuple[str, ...]]) -> list[Any]:  # Any: pytest does not name the type
    return [pytest.param(*row, marks=[pytest.mark.slow] if row[-1] == LONG else [], id="-".join(row)) for row in rows]


def _outcome(check: Check, mutant: str = "") -> tuple[Outcome, str]:
    running = session(mutant)
    try:
        result = running.run(check)
    finally:
        running.close()
    return result.outcome, result.message


@pytest.mark.parametrize("key", _cases((key,) for key in CHECKS))
def test_the_loop_passes_every_check(key: str) -> None:
    """The core's own loop keeps the rule."""
    outcome, message = _outcome(CHECKS[key])

    assert outcome is Outcome.PASS, message


@pytest.mark.parametrize(("mutant", "key"), _cases(_pairs()))
def test_a_broken_loop_is_killed_by_every_declared_killer(mutant: str, key: str) -> None:
    """A check that its mutant survives could be one that cannot fail."""
    outcome, message = _outcome(CHECKS[key], mutant)

    assert outcome is Outcome.FAIL, message
    assert not [kind for kind in OF_A_MUTANT if f"raised {kind}" in message], f"not of its defect: {message}"


def test_the_pinned_files_are_in_step() -> None:
    """`python -m tests.loop_suite --write` renews them."""
    assert inventory.differences(inventory.read_inventory(INVENTORY), CHECKS) == []
    assert matrix.differences(matrix.read_matrix(MATRIX), MUTANTS.values(), {}) == []


def test_every_check_kills_and_every_killer_is_a_check() -> None:
    """And a mutant that stands for an incident names a row of the table."""
    assert judge.killerless(CHECKS.values(), MUTANTS.values()) == []
    assert [pair for pair in _pairs() if pair[1] not in CHECKS] == []
    assert {mutant.row for mutant in MUTANTS.values()} - {""} <= set(ROWS)


def test_nothing_was_lost_when_the_loop_left_the_suite() -> None:
    """An id is in one of the two inventories, or retired in it; the same of mutants and the two matrices."""
    suite, loop = inventory.read_inventory(), inventory.read_inventory(INVENTORY)
    num_retired = len(suite.retired) + len(loop.retired)

    assert not set(suite.checks) & set(loop.checks)
    assert len(suite.checks) + len(loop.checks) + num_retired >= ONCE["checks"]
    assert not set(matrix.read_matrix()) & set(MUTANTS)
    assert len(matrix.read_matrix()) + len(MUTANTS) >= ONCE["mutants"]


def test_the_suite_offers_no_role_loop() -> None:
    """What a vendor installs checks plugins, not the core."""
    suite, loop = inventory.read_inventory(), inventory.read_inventory(INVENTORY)

    assert "loop" not in {*CHECKED_ROLES, *(pinned.role for pinned in suite.checks.values())}
    assert {"loop"} == {pinned.role for pinned in loop.checks.values()}
