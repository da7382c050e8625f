"""The checks and mutants there are: named once, covered, and cheap to list."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from areal_conformance.check import Level
from areal_conformance.checks import all_checks
from areal_core.plugins.install import pip_install
from areal_proof.incidents import ROWS
from areal_proof.mutants import all_mutants


def test_every_check_has_a_killer() -> None:
    """A check that no mutant names as its killer could be one that cannot fail."""
    killers = {key for mutant in all_mutants().values() for key in mutant.killers}

    judging = [key for key, check in all_checks().items() if check.level < Level.NUMBERS]

    assert [key for key in judging if key not in killers] == []


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

    known = {"device", "train", "infer", "pair", "scheduler", "transport", "workflow", "endpoint", "renderer"}

    assert known == set(roles)
    assert sum(roles.values()) >= 60


WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tensordict", "areal_torch"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
real = importlib.util.find_spec
def find_spec(name, package=None):
    try:
        return real(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = find_spec
"""
"""An interpreter in which the extra `engine` is not installed."""


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run code where there is no torch."""
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH + code], capture_output=True, text=True, check=False)


def test_without_the_extra_its_checks_are_left_out() -> None:
    """What carries no tensors is there, complete; of the rest it is known what is missing."""
    code = (
        "from areal_conformance.checks import all_checks, checks_of, missing\n"
        "from areal_conformance.inventory import read_inventory\n"
        "pinned = {key for key, one in read_inventory().checks.items() if one.role in ('static', 'scheduler')}\n"
        "assert set(all_checks()) == pinned, set(all_checks()) ^ pinned\n"
        "assert {check.role for check in checks_of('train')} == {'static'}\n"
        "assert missing('train') == ('torch', 'transformers', 'tensordict', 'areal_torch')\n"
    )
    done = without_torch(code)

    assert done.returncode == 0, done.stderr


def test_everything_is_listed_without_the_extra() -> None:
    """From the inventory; and the command that brings the rest is told."""
    done = without_torch("from areal_core.cli.main import main; sys.exit(main(['conformance', 'list']))")

    assert done.returncode == 0, done.stderr
    assert f"{len(all_checks())} checks." in done.stdout
    assert pip_install("areal-conformance[engine]") in done.stdout


def test_a_check_that_cannot_be_imported_is_not_called_unknown() -> None:
    """`explain` says what is missing."""
    code = "from areal_core.cli.main import main; sys.exit(main(['conformance', 'explain', 'train.forward.logprobs']))"
    done = without_torch(code)

    assert done.returncode != 0
    assert "not installed" in done.stderr
    assert pip_install("areal-conformance[engine]") in done.stderr


def test_a_role_is_read_without_the_others() -> None:
    """Checking a scheduler costs no torch."""
    code = (
        "import sys\n"
        "from areal_conformance.checks import checks_of\n"
        "assert len(checks_of('scheduler')) > 50\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
