"""Compare the pinned files with the checks and mutants there are, or renew them."""

from __future__ import annotations

import argparse
import sys

from areal_conformance import inventory
from areal_conformance.outcome import Outcome
from areal_proof.selftest import matrix

from .target import CHECKS, INVENTORY, MATRIX, MUTANTS, session


def main() -> int:
    """Print what differs; 1 if something does and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m tests.loop_suite", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew inventory.json and matrix.json")
    parser.add_argument("--full", action="store_true", help="run every check on every mutant; takes an hour")
    options = parser.parse_args()
    found = {name: _kills(name) for name in MUTANTS} if options.full else {}
    pinned, kills = inventory.read_inventory(INVENTORY), matrix.read_matrix(MATRIX)
    told = [
        *inventory.differences(pinned, CHECKS),
        *matrix.differences(kills, MUTANTS.values(), found),
    ]
    print("\n".join(told) or "in step")
    if not options.write:
        return 1 if told else 0
    INVENTORY.write_text(inventory.to_json(inventory.renewed(pinned, CHECKS)), encoding="utf-8")
    matrix.write_matrix(matrix.renewed(kills, MUTANTS.values(), found), MATRIX)
    return 0


def _kills(mutant: str) -> set[str]:
    running = session(mutant)
    try:
        return {key for key, check in CHECKS.items() if running.run(check).outcome is Outcome.FAIL}
    finally:
        running.close()


if __name__ == "__main__":
    sys.exit(main())
