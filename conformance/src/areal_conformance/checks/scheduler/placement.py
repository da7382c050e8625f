"""Every worker is where, who and what the job asked for.

Knows: ranks, identities, environments, threads, interpreters, devices.
Does not know: how a scheduler brings them about.
"""

from __future__ import annotations

import asyncio
import os
import sys
from unittest.mock import patch

from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import JOB, POLL, SUBMIT
from areal_conformance.outcome import expect
from areal_core.contract.scheduler import Scheduler, Worker, WorkerState

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OFTEN_SET = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "NCCL_RAS_ENABLE"),
    *("NUMEXPR_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "CUDA_DEVICE_ORDER", "TOKENIZERS_PARALLELISM"),
)
"""Variables that schedulers and their workers set of their own accord, beside those of threads."""
_VARIABLES = {
    "PROBE_PLAIN": "yes",
    "PROBE_EMPTY": "",
    "PROBE_ODD": " a=b; $HOME 'single' \"double\" * \\n \u00e9 ",
    "PROBE_LINES": "one\ntwo",
}


@check("scheduler.submit.ranks", level=Level.SINGLE, law=0, spec=SUBMIT)
async def submit_ranks(bench: SchedulerBench) -> None:
    """Handles come in rank order, `<role>/<rank>`, each of a process of its own, and poll tells the same."""
    async with bench.scheduler() as scheduler:
        expect(isinstance(scheduler, Scheduler), f"{type(scheduler).__name__} is no contract.Scheduler")
        workers = await bench.start(scheduler, bench.job("trio", num_workers=3))
        statuses = scheduler.poll("trio")
        wanted = [f"trio/{rank}" for rank in range(3)]
        expect([worker.id for worker in workers] == wanted, f"handles are {[worker.id for worker in workers]}")
        expect(all(isinstance(worker, Worker) for worker in workers), "a handle is no contract.Worker")
        expect(all(isinstance(worker.host, str) and worker.host for worker in workers), "a worker has no host")
        seen = [(status.id, status.role, status.rank, status.state) for status in statuses]
        expected = [(name, "trio", rank, WorkerState.RUNNING) for rank, name in enumerate(wanted)]
        expect(seen == expected, f"poll tells {seen}, expected {expected}")
        facts = await asyncio.gather(*(ask(worker, "facts") for worker in workers))
        pids = [fact["pid"] for fact in facts]
        expect(len({*pids, os.getpid()}) == 4, f"workers run in processes {pids}, the controller in {os.getpid()}")
        expect([s.pid for s in statuses] == pids, f"poll tells pids {[s.pid for s in statuses]}, they are {pids}")
        expect(all(s.exit_code is None for s in statuses), "a running worker has an exit code")


@check("scheduler.submit.several_roles", level=Level.SINGLE, law=0, spec=POLL)
async def several_roles(bench: SchedulerBench) -> None:
    """Roles are submitted side by side, polled apart, and a role that never ran has no workers."""
    async with bench.scheduler() as scheduler:
        expect(tuple(scheduler.poll("rollout")) == (), "poll of a role never submitted tells of workers")
        first, second = await asyncio.gather(
            bench.start(scheduler, bench.job("rollout")), bench.start(scheduler, bench.job("rollout.1", num_workers=2))
        )
        for role, workers in (("rollout", first), ("rollout.1", second)):
            facts = await asyncio.gather(*(ask(worker, "facts") for worker in workers))
            polled = [status.pid for status in scheduler.poll(role)]
            expect(polled == [f["pid"] for f in facts], f"poll({role!r}) tells {polled}, asked they say {facts}")
        logs = [status.log_path for role in ("rollout", "rollout.1") for status in scheduler.poll(role)]
        expect(len(set(logs)) == 3, f"three workers share logs: {logs}")
        expect(tuple(scheduler.poll("middle")) == (), "poll of an unknown role tells of workers")


@check("scheduler.env.reaches", level=Level.SINGLE, law=0, spec=JOB)
async def env_reaches(bench: SchedulerBench) -> None:
    """Every worker of a job has its variables, value by value; no other job has them, nor the controller."""
    before = dict(os.environ)
    async with bench.scheduler() as scheduler:
        given = await bench.start(scheduler, bench.job("given", num_workers=2, env=_VARIABLES))
        (other,) = await bench.start(scheduler, bench.job("other", env={"PROBE_PLAIN": "no"}))
        for worker in given:
            seen = (await ask(worker, "facts", names=list(_VARIABLES)))["env"]
            expect(seen == _VARIABLES, f"{worker.id} has {seen}, the job says {_VARIABLES}")
        seen = (await ask(other, "facts", names=list(_VARIABLES)))["env"]
        expect(seen == {"PROBE_PLAIN": "no"}, f"{other.id} has {seen}, its job says {{'PROBE_PLAIN': 'no'}}")
        expect(dict(os.environ) == before, "the controller's own environment was changed")


@check("scheduler.env.over_all", level=Level.SINGLE, law=0, spec=JOB)
async def env_over_all(bench: SchedulerBench) -> None:
    """Each worker has the threads its job gives it, not its controller's; what variable the job names itself wins."""
    with patch.dict(os.environ, dict.fromkeys(_THREADS, "6")):
        await _env_over_all(bench)


async def _env_over_all(bench: SchedulerBench) -> None:
    async with bench.scheduler() as scheduler:
        (three,) = await bench.start(scheduler, bench.job("three", cpus_per_worker=3))
        named = {"MKL_NUM_THREADS": "7", **dict.fromkeys(_OFTEN_SET, "5")}
        (own,) = await bench.start(scheduler, bench.job("own", cpus_per_worker=2, env=named))
        seen = (await ask(three, "facts", names=list(_THREADS)))["env"]
        expect(seen == dict.fromkeys(_THREADS, "3"), f"cpus_per_worker=3 gives a worker {seen}")
        wanted = {**dict.fromkeys(_THREADS, "2"), **named}
        seen = (await ask(own, "facts", names=list(wanted)))["env"]
        other = {name: seen.get(name) for name, value in wanted.items() if seen.get(name) != value}
        expect(not other, f"cpus_per_worker=2 and the job's variables {named} give a worker {other}")


@check("scheduler.submit.interpreter", level=Level.SINGLE, law=0, spec=JOB)
async def interpreter(bench: SchedulerBench) -> None:
    """Workers run under the interpreter their job names; without one, under the controller's."""
    python = bench.folder / "python"
    python.write_text(f'#!/bin/sh\nPROBE_PYTHON="$0" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    async with bench.scheduler() as scheduler:
        (other,) = await bench.start(scheduler, bench.job("other", python=str(python)))
        (same,) = await bench.start(scheduler, bench.job("same"))
        seen = (await ask(other, "facts", names=["PROBE_PYTHON"]))["env"].get("PROBE_PYTHON")
        expect(seen == str(python), f"a job with python={str(python)!r} runs under {seen or sys.executable}")
        fact = await ask(same, "facts", names=["PROBE_PYTHON"])
        expect(not fact["env"], f"a job without an interpreter runs under {fact['env'].get('PROBE_PYTHON')}")


@check("scheduler.submit.start_cheap", level=Level.SINGLE, law=0, spec=SUBMIT)
async def start_cheap(bench: SchedulerBench) -> None:
    """A worker imports what its engine needs and no more: torch is not loaded for an engine without it."""
    fact = await ask(await bench.worker(), "facts")
    expect(not fact["torch"], "torch is loaded in a worker whose engine does not use it")
