"""What the conformance suite must know of the scheduler of one machine: its options, and how their effects are seen.

Knows: where workers listen, what they tell, and what becomes of a run that does not move.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from areal_conformance.adapter import Adapter, Bounds, Variant
from areal_conformance.benches.process import listening
from areal_conformance.benches.scheduler import CALL_S, PROBE_FILE, SPEC, asking
from areal_conformance.outcome import Inconclusive
from areal_conformance.probes.engine import NAME
from areal_core.contract.errors import ArealError, WorkerTimeout
from areal_core.contract.scheduler import Job, Scheduler, Worker
from areal_core.contract.train import RankContext, TrainSpec

_BOUND_S, _LOOKS = 1.5, 40
"""Without an answer for so long a run does not move; looks at what polls raise, in twice as long."""
_LATE_S = 1.0
_HELD_S = 3.2
"""For how long the trainer does not answer: no less than is looked, and no longer than close may take."""
_NETWORK = (
    "scheduler.calls.owned",
    "scheduler.calls.late_reply",
    "scheduler.access.stranger",
    "scheduler.access.crowd",
    "scheduler.silence.calls",
)
"""What depends on how calls travel: over ports, where the options ask for a network."""


async def _place(scheduler: Scheduler) -> tuple[Sequence[str], str]:
    """Return the addresses a worker listens at, and the one its handle tells."""
    (worker,) = await scheduler.submit(_job("rollout", "infer"))
    (status,) = scheduler.poll("rollout")
    return sorted({address for address, _ in listening(status.pid)}), worker.host


async def _what_polls_raise(scheduler: Scheduler) -> dict[str, str]:
    """Let two workers answer nothing but the status; return what a poll of each raises in the end, "" for nothing."""
    (actor,), (rollout,) = await asyncio.gather(
        scheduler.submit(_job("actor", "train")), scheduler.submit(_job("rollout", "infer"))
    )
    await _start_trainer(actor, _HELD_S)
    await rollout.call("start", SPEC, timeout_s=CALL_S)
    if _raised(scheduler, "rollout"):
        raise Inconclusive(f"the machine needed {_BOUND_S:g} s from one start of a worker to the next")
    calls = [
        asyncio.ensure_future(actor.call("save_weights", "none", timeout_s=CALL_S)),
        asyncio.ensure_future(rollout.call("generate", asking("wait", gate="never"), timeout_s=CALL_S)),
    ]
    try:
        for _ in range(_LOOKS):
            if _raised(scheduler, "rollout"):
                break
            with contextlib.suppress(ArealError):  # as a run asks, whether it moves or not
                await rollout.call("status", timeout_s=CALL_S)
            await asyncio.sleep(_BOUND_S / _LOOKS * 2)
        return {role: _raised(scheduler, role) for role in ("actor", "rollout")}
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _what_poll_raises_of_late(scheduler: Scheduler) -> str:
    """Let a trainer miss the deadline of a call; return what its poll raises then."""
    (actor,) = await scheduler.submit(_job("actor", "train"))
    await _start_trainer(actor, _LATE_S)
    with contextlib.suppress(WorkerTimeout):
        await actor.call("save_weights", "none", timeout_s=_LATE_S / 4)
        raise Inconclusive(f"a call that takes {_LATE_S:g} s met its deadline of a quarter")
    return _raised(scheduler, "actor")


async def _what_poll_raises_of_loading(scheduler: Scheduler) -> dict[str, str]:
    """Let a trainer load for longer than the bound, and then answer nothing; return what its poll raises, each time."""
    (actor,) = await scheduler.submit(_job("actor", "train"))
    await _start_trainer(actor, _HELD_S, loads_s=2 * _BOUND_S)
    loading = _raised(scheduler, "actor")
    call = asyncio.ensure_future(actor.call("save_weights", "none", timeout_s=CALL_S))
    await asyncio.wait({call}, timeout=2 * _BOUND_S)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return {"loading": loading, "saving": _raised(scheduler, "actor")}


async def _start_trainer(worker: Worker, held_s: float, loads_s: float = 0.0) -> None:
    context = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="tcp://x:1")
    spec = TrainSpec(role="actor", model_path="none", options={"held_s": held_s, "loads_s": loads_s})
    await worker.call("start", spec, context, timeout_s=CALL_S)


def _raised(scheduler: Scheduler, role: str) -> str:
    try:
        scheduler.poll(role)
    except ArealError as error:
        return type(error).__name__
    return ""


def _job(role: str, engine_role: str) -> Job:
    return Job(role=role, num_workers=1, engine_role=engine_role, backend=NAME, imports=(PROBE_FILE,))


_EVERYWHERE = (str(IPv4Address(0)), str(IPv6Address(0)))
_BY_CHECKS = "checks set it themselves, and look that it is obeyed"

LOCAL = Adapter(
    variants={
        "network": Variant(
            options={"listen_on_all": True, "host": "127.0.0.2"},
            shows=_place,
            gives=([_EVERYWHERE[0]], "127.0.0.2"),
            checks=_NETWORK,
        ),
        "restarted": Variant(
            options={"progress_timeout_s": _BOUND_S},
            shows=_what_polls_raise,
            gives={"actor": "WorkerTimeout", "rollout": "WorkerTimeout"},
            again=False,
        ),
        "loading": Variant(
            options={"progress_timeout_s": _BOUND_S},
            shows=_what_poll_raises_of_loading,
            gives={"loading": "", "saving": "WorkerTimeout"},
            again=False,
        ),
        "ended": Variant(
            options={"progress_timeout_s": _BOUND_S, "stalled": "end"},
            shows=_what_polls_raise,
            gives={"actor": "RolloutError", "rollout": "RolloutError"},
            again=False,
        ),
        "late": Variant(options={"stalled": "end"}, shows=_what_poll_raises_of_late, gives="", again=False),
    },
    bounds={
        "host": Bounds(takes=("127.0.0.1", "192.0.2.1", "::1"), refuses=(*_EVERYWHERE, "somewhere", "")),
        "start_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "heartbeat_timeout_s": Bounds(takes=(1e-3,), refuses=(0.0, -1.0)),
        "progress_timeout_s": Bounds(takes=(0.0,), refuses=(-1e-3,)),
        "stop_timeout_s": Bounds(takes=(0.0,), refuses=(-1e-3,)),
        "stalled": Bounds(takes=("restart", "end"), refuses=("", "stop", "Restart")),
    },
    without_effect={
        "log_dir": _BY_CHECKS,
        "start_timeout_s": _BY_CHECKS,
        "heartbeat_timeout_s": _BY_CHECKS,
        "stop_timeout_s": "how long a worker that does not end is waited for before it is killed",
    },
)
