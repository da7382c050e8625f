"""Accelerators: each is owned by one worker, or by one and its guest; places beside another role, on hosts too.

Knows: how a controller is made to see devices that need not exist: the variable that names the visible ones.
Does not know: any driver; who owns what is told by the workers themselves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB, SUBMIT
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.device import Device
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Scheduler, Share, Together, Worker
from areal_core.plugins.devices import accelerators

_DEVICES = Together(role="first", share=Share.DEVICES)


@check("scheduler.devices.exclusive", level=Level.SINGLE, law=0, spec=JOB)
async def exclusive(bench: SchedulerBench) -> None:
    """No device has two owners; a device is free again once its job is cancelled, and not before."""
    kind = kind_of(bench)
    await bench.alone()
    with seeing(kind, "3,5,7"):
        async with bench.scheduler() as scheduler:
            first = await bench.start(scheduler, device_job(bench, kind, "first", num_workers=2))
            (second,) = await bench.start(scheduler, device_job(bench, kind, "second"))
            owned = [await owned_devices(kind, worker) for worker in (*first, second)]
            expect(all(len(ids) == 1 for ids in owned), f"workers of one device each see {owned}")
            every = sorted(number for ids in owned for number in ids)
            expect(every == ["3", "5", "7"], f"of devices 3, 5, 7 workers own {owned}")
            await _refused(bench, kind, scheduler, "third", 1)
            await scheduler.cancel("second")
            await _refused(bench, kind, scheduler, "third", 2)
            (third,) = await bench.start(scheduler, device_job(bench, kind, "third"))
            given = await owned_devices(kind, third)
            expect(given == owned[2], f"freed were {owned[2]}, given out {given}")
            await scheduler.cancel("third")
            await scheduler.cancel("third")
            await scheduler.cancel("first")
            (both,) = await bench.start(scheduler, device_job(bench, kind, "both", devices_per_worker=2))
            (last,) = await bench.start(scheduler, device_job(bench, kind, "last"))
            owned = [await owned_devices(kind, both), await owned_devices(kind, last)]
            expect((len(owned[0]), len(owned[1])) == (2, 1), f"two devices and one were asked for: {owned}")
            expect(len({*owned[0], *owned[1]}) == 3, f"a device has two owners: {owned}")


@check("scheduler.devices.absent", level=Level.SINGLE, law=8, spec=SUBMIT)
async def absent(bench: SchedulerBench) -> None:
    """A job that wants more devices than there are is refused with the numbers, and nothing is started."""
    kind = kind_of(bench)
    await bench.alone()
    with seeing(kind, "3,5"):
        async with bench.scheduler() as scheduler:
            await bench.start(scheduler, bench.job("first"))  # and with it what the scheduler starts for itself
            await scheduler.cancel("first")
            before = bench.processes()
            await _refused(bench, kind, scheduler, "many", 3)
            await bench.gone(bench.processes() - before, "after a job that was refused")
            expect(tuple(scheduler.poll("many")) == (), "poll tells of workers of a job that was refused")
            (worker,) = await bench.start(scheduler, device_job(bench, kind, "many", devices_per_worker=2))
            expect(sorted(await owned_devices(kind, worker)) == ["3", "5"], "a refused job kept devices")


@check("scheduler.devices.none_on_cpu", level=Level.SINGLE, law=0, spec=JOB)
async def none_on_cpu(bench: SchedulerBench) -> None:
    """A job on the CPU owns no device, sees none, and its devices are not counted."""
    kind = next(iter(_confinable(bench).values()), None)
    if kind is None:
        raise Inconclusive("no kind of accelerator is known here that a process can be confined to")
    await bench.alone()
    with seeing(kind, "3,5"):
        async with bench.scheduler() as scheduler:
            (worker,) = await bench.start(scheduler, bench.job("plain", devices_per_worker=9))
            seen = await owned_devices(kind, worker)
            expect(seen == (), f"a worker on the CPU sees devices {seen}")


@check("scheduler.devices.of_its_kind", level=Level.SINGLE, law=0, spec=JOB, since=(1, 1))
async def of_its_kind(bench: SchedulerBench) -> None:
    """A worker sees its devices and none of any other kind."""
    kind = kind_of(bench)
    # Those that a cluster counts under one name cannot both be there.
    others = [other for other in _confinable(bench).values() if other.resource != kind.resource]
    await bench.alone()
    with contextlib.ExitStack() as stack:
        stack.enter_context(seeing(kind, "3"))
        for other in others:
            stack.enter_context(seeing(other, "5"))
        async with bench.scheduler() as scheduler:
            (worker,) = await bench.start(scheduler, device_job(bench, kind, "one"))
            owned = await owned_devices(kind, worker)
            expect(owned == ("3",), f"the only {kind.name} device is 3, and a worker sees {owned}")
            for other in others:
                hiding = dict(other.hidden or {})
                seen = (await ask(worker, "facts", names=[*other.visible_variables, *hiding]))["env"]
                hidden = bool(hiding) and hiding.items() <= seen.items()
                expect(hidden or not other.visible(seen), f"a worker on {kind.name} sees {other.name} by {seen}")


@contextlib.contextmanager
def seeing(kind: Device, ids: str) -> Iterator[None]:
    """Let this process see devices of these ids, which need not exist."""
    before = {name: os.environ.get(name) for name in kind.visible_variables}
    os.environ.update(dict.fromkeys(before, ids))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def kind_of(bench: SchedulerBench) -> Device:
    """Return the first kind of accelerator the scheduler places jobs on that a process can be confined to."""
    manifest, known = bench.target.manifest, _confinable(bench)
    placed = known if manifest is None else [name for name in manifest.devices if name in known]
    for name in placed:
        return known[name]
    raise Inconclusive(f"{bench.target.name} places jobs on no kind of accelerator that a process can be confined to")


def device_job(
    bench: SchedulerBench, kind: Device, role: str, num_workers: int = 1, devices_per_worker: int = 1
) -> Job:
    """Return a job of workers with devices."""
    return bench.job(role, num_workers=num_workers, device=kind.name, devices_per_worker=devices_per_worker)


def _confinable(bench: SchedulerBench) -> dict[str, Device]:
    """Return the kinds of accelerator a process can be confined to, by name."""
    return {device.name: device for device in accelerators(bench.target.registry) if device.visible_variables}


async def _refused(bench: SchedulerBench, kind: Device, scheduler: Scheduler, role: str, count: int) -> None:
    what = f"a job of {count} workers with one device each, more than are free,"
    work = scheduler.submit(device_job(bench, kind, role, num_workers=count))
    await bench.raised(ResourceError, work, what, str(count))


async def owned_devices(kind: Device, worker: Worker) -> tuple[str, ...]:
    """Return the devices a worker sees."""
    variable = kind.visible_variables[0]
    seen = (await ask(worker, "facts", names=[variable]))["env"].get(variable)
    expect(seen is not None, f"{worker.id} is not confined: {variable} is not set in it")
    return tuple(part for part in str(seen).split(",") if part not in ("", "-1"))


beside = partial(check, level=Level.SINGLE, law=0, spec=JOB, requires=("together.host",), since=(1, 1))


@beside("scheduler.together.host")
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


@beside("scheduler.together.devices", requires=("together.devices",))
async def devices(bench: SchedulerBench) -> None:
    """Guests own the devices of the other role, in rank order and none twice; everybody else gets other ones."""
    kind = kind_of(bench)
    await bench.alone()
    with seeing(kind, "3,5,7,9,11"):
        async with bench.scheduler() as scheduler:
            first = await bench.start(scheduler, device_job(bench, kind, "first", num_workers=2, devices_per_worker=2))
            owned = [await owned_devices(kind, worker) for worker in first]
            (other,) = await bench.start(scheduler, device_job(bench, kind, "other"))
            shared = set(await owned_devices(kind, other)) & {device for ids in owned for device in ids}
            expect(not shared, f"a job that asked for no company shares {shared}")
            for number in range(2):
                (guest,) = await bench.start(scheduler, _guest(bench, f"guest.{number}", devices_per_worker=2))
                found = await owned_devices(kind, guest)
                expect(found == owned[number], f"guest {number} of workers with {owned} owns {found}")
                expect(guest.host == first[number].host, f"{guest.id} has a device of {first[number].host}")
            work = scheduler.submit(_guest(bench, "guest.2"))
            await bench.raised(ResourceError, work, "a third guest on devices of two", "first")
            for number in range(2):
                await scheduler.cancel(f"guest.{number}")
            guests = await bench.start(scheduler, _guest(bench, "guests", num_workers=2, devices_per_worker=2))
            found_of_both = [await owned_devices(kind, guest) for guest in guests]
            expect(found_of_both == owned, f"two guests in one job, of workers with {owned}, own {found_of_both}")


@beside("scheduler.together.returned", law=10, requires=("together.devices",))
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
                free = await owned_devices(kind, taken)
                expect(free == ("3",), f"after both ended, {free} is free")
                work = scheduler.submit(device_job(bench, kind, "more"))
                await bench.raised(ResourceError, work, "a second job for one device")
                await scheduler.cancel("next")


@beside("scheduler.together.absent", law=8)
async def no_such_role(bench: SchedulerBench) -> None:
    """A place beside a role that does not run is refused by its name, and nothing is started."""
    async with bench.scheduler() as scheduler:
        before = bench.processes()
        work = scheduler.submit(bench.job("guest", together_with=Together(role="nobody")))
        await bench.raised(ConfigError, work, "a job together with a role that does not run", "nobody")
        await bench.gone(bench.processes() - before, "after a job that was refused")
        await bench.start(scheduler, bench.job("guest"))


def _guest(bench: SchedulerBench, role: str, **more: int) -> Job:
    return bench.job(role, device="cuda", together_with=_DEVICES, **more)
