"""The checks and mutants there are: named once, covered, and cheap to list."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from areal_conformance.checks import all_checks
from areal_proof.incidents import ROWS
from areal_proof.mutants import all_mutants


def test_every_check_has_a_killer() -> None:
    """A check that no mutant names as its killer could be one that cannot fail."""
    killers = {key for mutant in all_mutants().values() for key in mutant.killers}

    assert [key for key in all_checks() if key not in killers] == []


def test_every_killer_is_a_check() -> None:
    """A mutant names checks that there are, of its own role or static."""
    checks = all_checks()
    wrong = [
        (mutant.name, key)
        for mutant in all_mutants().values()
        for key in mutant.killers
        if key not in checks or checks[key].role not in (mutant.role, "static")
    ]

    assert wrong == []


def test_every_incident_has_a_mutant() -> None:
    """Each kind of incident is stood for, and a mutant names no other kind."""
    rows = Counter(mutant.row for mutant in all_mutants().values() if mutant.row)

    assert set(ROWS) == set(rows)


def test_there_are_enough_mutants() -> None:
    """Each role that can be checked has mutants."""
    roles = Counter(mutant.role for mutant in all_mutants().values())

    assert {"train", "infer", "pair", "scheduler", "transport", "workflow"} == set(roles)
    assert sum(roles.values()) >= 60


def test_listing_checks_imports_no_engine() -> None:
    """`areal conformance list` works where torch is not installed."""
    code = (
        "import sys\n"
        "from areal_conformance.checks import all_checks\n"
        "assert len(all_checks()) > 100\n"
        "heavy = [name for name in ('torch', 'transformers', 'tensordict', 'numpy') if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
