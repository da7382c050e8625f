"""The rollout side under random orders of waiting, training, saving, crashing and losing a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.check import Level, check
from areal_conformance.machines.examples import examples

from ..machine import OPERATIONS, StalenessMachine
from .staleness import LEFT_OUT, Lengths, number_of, teaches

if TYPE_CHECKING:
    from ..bench import LoopBench


@check("loop.machine.staleness", level=Level.FAULTS, law=2, spec="index#law-by-law", deadline_s=120)
async def machine(bench: LoopBench) -> None:
    """In every order of operations the bound holds, every prompt is trained on once, and none is lost."""
    for number, operations in enumerate(examples(OPERATIONS, count=25)):
        prompts, staleness = 1 + number % 2, number % 3
        options = {
            "prompts": prompts,
            "group": 1,
            "staleness": staleness,
            "num_rows": 1000,
            "num_replicas": 2,
            "length": Lengths(number),
            "retries": 2,
        }
        left_out: frozenset[int] = frozenset()
        if number % 4 > 1:
            options |= {"dynamic_batch": True, "accept": teaches, "judge": number_of, "accept_tries": 1000}
            left_out = frozenset(index for index in range(1000) if index % 20 in LEFT_OUT)
        await StalenessMachine(bench, options, staleness, left_out).run(operations)
