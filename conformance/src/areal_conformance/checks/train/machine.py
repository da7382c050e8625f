"""Random orders of train, save, load, crash, skip and send, against a run that was never interrupted.

Knows: how many orders are tried.
Does not know: what must hold (`machines.checkpoint`).
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.machines.checkpoint import OPERATIONS, Machine, Straight
from areal_conformance.machines.examples import examples


@check(
    "train.machine.checkpoint",
    level=Level.SINGLE,
    law=4,
    spec="train#areal_core.contract.train.TrainEngine.load_state",
    requires=("checkpoint.exact",),
)
def checkpoint(bench: TrainBench) -> None:
    """In whatever order it trains, saves, loads, crashes and skips, the engine is where the straight run was."""
    straight = Straight.of(bench)
    for operations in examples(OPERATIONS, count=12):
        Machine(bench=bench, straight=straight).play(operations)
