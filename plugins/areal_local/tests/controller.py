"""A controller to be killed: starts two workers with a grandchild each, tells all process ids, and waits for ever."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from areal_conformance.probes.processes import descendants
from areal_core.contract import InferenceSpec, Job
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler


async def run(log_dir: str, engines: str) -> None:
    scheduler = LocalScheduler(LocalConfig(log_dir=log_dir))
    job = Job(role="rollout", engine_role="infer", backend="probe", num_workers=2, imports=(engines,))
    workers = await scheduler.submit(job)
    spec = InferenceSpec(model_path="none", options={"children": 1})
    await asyncio.gather(*(worker.call("start", spec, timeout_s=30) for worker in workers))
    pids = [status.pid for status in scheduler.poll("rollout")]
    print(json.dumps([pid for worker in pids for pid in (worker, *descendants(worker))]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], str(Path(__file__).with_name("engines.py"))))
