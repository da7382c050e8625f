"""A process of the self-test: takes items from its standard input, makes their checks, tells each end.

    in   {"item": {...}}
    out  {"began": id, "limit_s": 95.0}   {"ended": {...}}   {"done": true, "threads": 0}

What a check prints goes to standard error; the lines out have a descriptor of their own.

Knows: the lines.
Does not know: how many workers there are, or what the ends mean.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any, TextIO

import cattrs

from areal_conformance.check import Check
from areal_conformance.outcome import Outcome, Result
from areal_conformance.runner import GRACE_S
from areal_conformance.session import CLOSE_S
from areal_proof.selftest.catalogue import Catalogue
from areal_proof.selftest.work import Item

SLACK_S = 30.0


def serve(catalogue: Catalogue, lines: TextIO, out: TextIO) -> None:
    """Work until the lines end."""

    def tell(**line: object) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    for line in lines:
        item = cattrs.structure(json.loads(line)["item"], Item)
        _work(catalogue, item, tell)
        tell(done=True, threads=_left())


def _work(catalogue: Catalogue, item: Item, tell: Any) -> None:
    # Any: `tell` takes the fields of a line by name.
    tell(began="(building)", limit_s=CLOSE_S + SLACK_S)
    checks = catalogue.checks()
    try:
        session, patience = catalogue.session(item)
    except Exception as error:
        for key in item.checks:
            told = f"the target could not be made: {type(error).__name__}: {error}"
            tell(ended=_plain(Result(check=key, outcome=Outcome.ERROR, message=told)))
        return
    for key in item.checks:
        tell(began=key, limit_s=_limit(checks[key], patience))
        tell(ended=_plain(session.run(checks[key])))
    tell(began="(closing)", limit_s=CLOSE_S * patience + SLACK_S)
    session.close()


def _limit(check: Check, patience: float) -> float:
    return (check.deadline_s + 2 * CLOSE_S) * patience + GRACE_S + SLACK_S


def _plain(result: Result) -> dict[str, Any]:
    return {
        "check": result.check,
        "outcome": str(result.outcome),
        "message": result.message,
        "seconds": round(result.seconds, 3),
    }


def _left() -> int:
    """Return how many threads of checks are still alive: the next items deserve a process without them."""
    return sum(thread.name == "areal-conformance" for thread in threading.enumerate())


def main() -> None:
    """Serve the catalogue named on the command line."""
    module, _, name = sys.argv[1].partition(":")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(getattr(importlib.import_module(module), name), sys.stdin, out)
    out.close()
    os._exit(0)  # a thread that hangs in a check must not keep the process


if __name__ == "__main__":
    main()
