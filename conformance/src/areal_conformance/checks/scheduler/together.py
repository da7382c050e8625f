"""Places beside another role: its hosts, or its devices, which then have an owner and one guest.

Knows: who owns what, told by the workers themselves.
Does not know: any driver; the variable that names visible devices stands for them.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.benches.scheduler import SchedulerBench
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB
from areal_conformance.checks.scheduler.devices import device_job, kind_of, owned_devices, seeing
from areal_conformance.outcome import expect
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Share, Together

_DEVICES = Together(role="first", share=Share.DEVICES)


@check("scheduler.together.host", level=Level.SINGLE, law=0, spec=JOB, requires=("together.host",), since=(1, 1))
async def host(bench: SchedulerBench) -> None:
    """Every worker of a job that is to share the hosts of another is on one of them, whichever that is."""
    async with bench.scheduler() as scheduler:
        place: dict[str, Any] = {}  # Any: fields of Job
        if bench.target.claimed("hosts.spread") and bench.target.claimed("hosts.named"):
            spread = await scheduler.submit(bench.job("probing", num_workers=2, num_hosts=2))
            place = {"hosts": (spread[-1].host,)}
        (first,) = await bench.start(scheduler, bench.job("first", **place))
        guests = await bench.start(scheduler, bench.job("guest", num_workers=2, together_with=Together(role="first")))
        hosts = {worker.host for worker in guests}
        expect(hosts == {first.host}, f"{first.id} is on {first.host}, a job together with it on {hosts}")


@check("scheduler.together.devices", level=Level.SINGLE, law=0, spec=JOB, requires=("together.devices",), since=(1, 1))
async def devices(bench: SchedulerBench) -> None:
    """Guests own the devices of the other role, in rank order and none twice; everybody else gets other ones."""
    kind = kind_of(bench)
    with seeing(kind, "3,5,7"):
        async with bench.scheduler() as scheduler:
            first = await bench.start(scheduler, device_job(bench, kind, "first", num_workers=2))
            owned = [await owned_devices(kind, worker) for worker in first]
            (other,) = await bench.start(scheduler, device_job(bench, kind, "other"))
            expect(await owned_devices(kind, other) not in owned, f"a job that asked for no company shares {owned}")
            for number in range(2):
                (guest,) = await bench.start(scheduler, _guest(bench, f"guest.{number}"))
                found = await owned_devices(kind, guest)
                expect(found == owned[number], f"guest {number} of workers with {owned} owns {found}")
                expect(guest.host == first[number].host, f"{guest.id} has a device of {first[number].host}")
            work = scheduler.submit(_guest(bench, "guest.2"))
            await bench.raised(ResourceError, work, "a third guest on two devices", "first")


@check(
    "scheduler.together.returned", level=Level.SINGLE, law=10, spec=JOB, requires=("together.devices",), since=(1, 1)
)
async def returned(bench: SchedulerBench) -> None:
    """A shared device is free once its owner and its guest are both gone, whichever goes first, and only once."""
    kind = kind_of(bench)
    with seeing(kind, "3"):
        async with bench.scheduler() as scheduler:
            for order in (("first", "guest"), ("guest", "first")):
                await bench.start(scheduler, device_job(bench, kind, "first"))
                await bench.start(scheduler, _guest(bench, "guest"))
                await scheduler.cancel(order[0])
                work = scheduler.submit(device_job(bench, kind, "next"))
                await bench.raised(ResourceError, work, f"a job for the device that {order[1]} still owns")
                await scheduler.cancel(order[1])
                (taken,) = await bench.start(scheduler, device_job(bench, kind, "next"))
                expect(
                    await owned_devices(kind, taken) == ("3",),
                    f"after both ended, {await owned_devices(kind, taken)} is free",
                )
                work = scheduler.submit(device_job(bench, kind, "more"))
                await bench.raised(ResourceError, work, "a second job for one device")
                await scheduler.cancel("next")


@check("scheduler.together.absent", level=Level.SINGLE, law=8, spec=JOB, requires=("together.host",), since=(1, 1))
async def absent(bench: SchedulerBench) -> None:
    """A place beside a role that does not run is refused by its name, and nothing is started."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        work = scheduler.submit(bench.job("guest", together_with=Together(role="nobody")))
        await bench.raised(ConfigError, work, "a job together with a role that does not run", "nobody")
        await bench.gone(bench.processes() - before, "after a job that was refused")
        await bench.start(scheduler, bench.job("guest"))


def _guest(bench: SchedulerBench, role: str) -> Job:
    return bench.job(role, device="cuda", together_with=_DEVICES)
