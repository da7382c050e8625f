"""Any order of operations: the scheduler's machine as one check.

Knows: how much of it is run.
Does not know: the model (`machines.scheduler`).
"""

from __future__ import annotations

from areal_conformance.benches.scheduler import SchedulerBench
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import SUBMIT
from areal_conformance.machines.scheduler import explore

_EXAMPLES = 5
_STEPS = 8


@check("scheduler.machine.lifecycle", level=Level.FAULTS, law=10, spec=SUBMIT, deadline_s=180.0)
def lifecycle(bench: SchedulerBench) -> None:
    """In any order of submit, call, kill and cancel no worker is lost, none doubled, and every state told right."""
    explore(bench, num_examples=_EXAMPLES, max_steps=_STEPS)
