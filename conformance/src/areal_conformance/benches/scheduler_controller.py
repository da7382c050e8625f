"""A controller to be killed: starts workers that start children, tells every process id, and waits for ever.

    python -m areal_conformance.benches.scheduler_controller '{"locator": {...}, "job": {...}, "options": {...}}'

Knows: how a target is found by its locator in another process.
Does not know: what its death should lead to (`checks.scheduler.orphans`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from areal_conformance.benches.scheduler import SchedulerBench, asking
from areal_conformance.probes.processes import descendants
from areal_conformance.target import Locator, locate
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.scheduler import Job


async def run(given: dict[str, Any]) -> None:  # Any: plain JSON
    """Start, tell, wait."""
    bench = SchedulerBench(locate(Locator(**given["locator"])))
    scheduler = bench.build(**given["options"])
    workers = await scheduler.submit(Job(**given["job"]))
    pids: set[int] = set()
    for worker in workers:
        await worker.call("start", InferenceSpec(model_path="none"), timeout_s=60)
        pids.add((await worker.call("generate", asking("spawn"), timeout_s=60)).token_extras["pid"])
    for status in scheduler.poll(given["job"]["role"]):
        pids.update((status.pid, *descendants(status.pid)))
    bench.close()
    sys.stdout.write(json.dumps(sorted(pids)) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
