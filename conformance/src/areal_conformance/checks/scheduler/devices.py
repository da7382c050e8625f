"""Accelerators: each is owned by one worker, and what is not there is refused.

Knows: how a controller is made to see devices that need not exist: the variable that names the visible ones.
Does not know: any driver.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from areal_conformance.benches.scheduler import SchedulerBench, ask, told
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB, SUBMIT
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job, Scheduler, Worker

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@check("scheduler.devices.exclusive", level=Level.SINGLE, law=0, spec=JOB)
async def exclusive(bench: SchedulerBench) -> None:
    """No device has two owners; a device is free again once its job is cancelled, and not before."""
    needs_cuda(bench)
    with seeing("3,5,7"):
        async with bench.scheduler() as scheduler:
            first = await bench.start(scheduler, cuda_job(bench, "first", num_workers=2))
            (second,) = await bench.start(scheduler, cuda_job(bench, "second"))
            owned = [await owned_devices(worker) for worker in (*first, second)]
            expect(all(len(ids) == 1 for ids in owned), f"workers of one device each see {owned}")
            expect(
                sorted(i for ids in owned for i in ids) == ["3", "5", "7"], f"of devices 3, 5, 7 workers own {owned}"
            )
            await _refused(bench, scheduler, "third", 1)
            await scheduler.cancel("second")
            await _refused(bench, scheduler, "third", 2)
            (third,) = await bench.start(scheduler, cuda_job(bench, "third"))
            expect(
                await owned_devices(third) == owned[2], f"freed were {owned[2]}, given out {await owned_devices(third)}"
            )
            await scheduler.cancel("third")
            await scheduler.cancel("third")
            await scheduler.cancel("first")
            (both,) = await bench.start(scheduler, cuda_job(bench, "both", devices_per_worker=2))
            (last,) = await bench.start(scheduler, cuda_job(bench, "last"))
            owned = [await owned_devices(both), await owned_devices(last)]
            expect((len(owned[0]), len(owned[1])) == (2, 1), f"two devices and one were asked for: {owned}")
            expect(len({*owned[0], *owned[1]}) == 3, f"a device has two owners: {owned}")


@check("scheduler.devices.absent", level=Level.SINGLE, law=8, spec=SUBMIT)
async def absent(bench: SchedulerBench) -> None:
    """A job that wants more devices than there are is refused with the numbers, and nothing is started."""
    needs_cuda(bench)
    with seeing("3,5"):
        async with bench.scheduler() as scheduler:
            before = bench.processes()
            await _refused(bench, scheduler, "many", 3)
            await bench.gone(bench.processes() - before, "after a job that was refused")
            expect(tuple(scheduler.poll("many")) == (), "poll tells of workers of a job that was refused")
            (worker,) = await bench.start(scheduler, cuda_job(bench, "many", devices_per_worker=2))
            expect(sorted(await owned_devices(worker)) == ["3", "5"], "a refused job kept devices")


@check("scheduler.devices.none_on_cpu", level=Level.SINGLE, law=0, spec=JOB)
async def none_on_cpu(bench: SchedulerBench) -> None:
    """A job on the CPU owns no device, sees none, and its devices are not counted."""
    with seeing("3,5"):
        async with bench.scheduler() as scheduler:
            (worker,) = await bench.start(scheduler, bench.job("plain", devices_per_worker=9))
            expect(await owned_devices(worker) == (), f"a worker on the CPU sees devices {await owned_devices(worker)}")


@contextlib.contextmanager
def seeing(ids: str) -> Iterator[None]:
    """Let this process see devices of these ids, which need not exist."""
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = ids
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def needs_cuda(bench: SchedulerBench) -> None:
    """Leave the check to targets that place jobs on CUDA devices."""
    manifest = bench.target.manifest
    if manifest is not None and "cuda" not in manifest.devices:
        raise Inconclusive(f"{bench.target.name} places jobs on {', '.join(manifest.devices)}; this looks at cuda")


def cuda_job(bench: SchedulerBench, role: str, num_workers: int = 1, devices_per_worker: int = 1) -> Job:
    """Return a job of workers with devices."""
    return bench.job(role, num_workers=num_workers, device="cuda", devices_per_worker=devices_per_worker)


async def _refused(bench: SchedulerBench, scheduler: Scheduler, role: str, count: int) -> None:
    what = f"a job of {count} workers with one device each, more than are free,"
    error = await bench.raised(scheduler.submit(bench.job(role, num_workers=count, device="cuda")), what)
    expect(isinstance(error, ResourceError), f"{what} raised {type(error).__name__}: {error}")
    expect(str(count) in told(error), f"the refusal does not tell how many are wanted: {told(error)}")


async def owned_devices(worker: Worker) -> tuple[str, ...]:
    """Return the devices a worker sees."""
    seen = (await ask(worker, "facts", names=[_VISIBLE]))["env"].get(_VISIBLE)
    expect(seen is not None, f"{worker.id} is not confined: {_VISIBLE} is not set in it")
    return tuple(part for part in str(seen).split(",") if part not in ("", "-1"))
