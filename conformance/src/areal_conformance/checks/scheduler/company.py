"""More than one run, and more than one user, on a machine: neither is in the other's way.

Knows: two schedulers in one process, and what the files of sockets let others do.
Does not know: how a scheduler talks to its workers.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from areal_conformance.benches.process import unix_sockets
from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CANCEL, WORKER
from areal_conformance.outcome import expect
from areal_conformance.probes.processes import descendants

_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ENTER = stat.S_IXGRP | stat.S_IXOTH


@check("scheduler.company.two_runs", level=Level.SINGLE, law=10, spec=CANCEL)
async def two_runs(bench: SchedulerBench) -> None:
    """A scheduler that starts, and one that closes, leave the workers of another alone, and those it starts later."""
    async with bench.scheduler(log_dir=str(bench.folder / "first")) as first:
        (before,) = await bench.start(first, bench.job("before"))
        async with bench.scheduler(log_dir=str(bench.folder / "second")) as second:
            (other,) = await bench.start(second, bench.job("before"))
            (beside,) = await bench.start(first, bench.job("beside"))
            for value, worker in enumerate((before, other, beside)):
                given = await ask(worker, "echo", value=value)
                expect(given == {"value": value}, f"beside another run {worker.id} gave {given} for {value}")
        (after,) = await bench.start(first, bench.job("after"))
        for value, worker in enumerate((before, beside, after)):
            given = await ask(worker, "echo", value=value)
            expect(given == {"value": value}, f"after another run {worker.id} gave {given} for {value}")


@check("scheduler.access.other_users", level=Level.SINGLE, law=11, spec=WORKER)
async def other_users(bench: SchedulerBench) -> None:
    """No other user can connect to a worker's Unix sockets, whatever files this user shares with others else."""
    usual = os.umask(0)
    try:
        async with bench.scheduler() as scheduler:
            await bench.start(scheduler, bench.job(num_workers=2))
            pids = [status.pid for status in scheduler.poll("probe") if status.pid]
            pids += [child for pid in pids for child in descendants(pid)]
            sockets = sorted({path for pid in pids for path in unix_sockets(pid)})
            open_ones = [str(path) for path in sockets if path.exists() and _can_be_entered(path)]
            expect(not open_ones, f"whoever has an account on this machine can connect to {open_ones}")
            bench.numbers["sockets with a path"] = float(len(sockets))
    finally:
        os.umask(usual)


def _can_be_entered(path: Path) -> bool:
    """Tell whether others may pass every folder on the way, and write to the socket.

    The temporary folder is not a scheduler's own, and may be one that everybody enters: it keeps nobody out.
    """
    temporary = Path(tempfile.gettempdir())
    modes = [folder.stat().st_mode for folder in path.parents if folder not in (temporary, *temporary.parents)]
    return bool(path.stat().st_mode & _WRITE) and all(mode & _ENTER for mode in modes)
