"""What the conformance suite must know of the scheduler of one machine: its options, and how their effects are seen.

Knows: where workers listen, whom they answer, and what becomes of a run that does not move.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import attrs
import msgspec
import zmq

from areal_conformance.adapter import Adapter, Bounds, Variant
from areal_conformance.benches.process import listening
from areal_conformance.benches.scheduler import CALL_S, PROBE_FILES, SPEC, asking
from areal_conformance.outcome import Inconclusive
from areal_conformance.probes.engine import NAME
from areal_core.contract.errors import ArealError, WorkerTimeout
from areal_core.contract.scheduler import Job, Scheduler, Worker
from areal_core.contract.train import RankContext, TrainSpec
from areal_local.scheduler.channel import KeyPair, connected
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.stalls import CONTROLLER_LOG
from areal_worker.codec import encode

_BOUND_S, _LOOKS = 1.5, 40
"""Without an answer for so long a run does not move; looks at what polls raise, in twice as long."""
_SHORT_S = 0.6
"""Such a bound where one worker alone is looked at."""
_LOOK_S = 0.05
_LATE_S = 1.0
_HELD_S = 3.2
"""For how long the trainer does not answer: no less than is looked, and no longer than close may take."""
_LINGERS_S = 0.5
"""For how long an engine closes that is not waited for, or is: by default ten times as long."""
_STRANGER_MS = 300
_ELSEWHERE = "192.0.2.1"
"""No machine has it: RFC 5737 keeps it for texts."""
_NETWORK = (
    "scheduler.calls.values",
    "scheduler.calls.owned",
    "scheduler.calls.late_reply",
    "scheduler.access.stranger",
    "scheduler.access.crowd",
    "scheduler.access.collectives",
    "scheduler.silence.calls",
)
"""What depends on how calls travel: over ports, where the options ask for a network."""


async def _place(scheduler: LocalScheduler) -> tuple[Sequence[str], str, Sequence[int]]:
    """Return the addresses a worker listens at, the one its handle tells, and the ports that answer anybody's key."""
    (worker,) = await scheduler.submit(_job("rollout", "infer"))
    (status,) = scheduler.poll("rollout")
    places = listening(status.pid)
    open_ports = [port for _, port in places if await asyncio.to_thread(_answers_strangers, scheduler, port)]
    return sorted({address for address, _ in places}), worker.host, open_ports


def _answers_strangers(scheduler: LocalScheduler, port: int) -> bool:
    """Tell whether a worker answers who knows its public key and has a key of their own."""
    (worker,) = scheduler.gangs["rollout"].workers
    with zmq.Context() as context:
        line = connected(context, KeyPair.generate(), worker.public_key, worker.client.host, port)
        with line, contextlib.suppress(zmq.Again):
            line.send_multipart([msgspec.msgpack.encode((0, 1, "status")), *encode(())], zmq.NOBLOCK)
            return bool(line.poll(_STRANGER_MS))
    return False


async def _what_polls_raise(scheduler: LocalScheduler) -> Mapping[str, object]:
    """Let two workers answer nothing but the status, and ask a third for nothing.

    Return what a poll of each raises in the end, "" for nothing, whether that tells who waits for whom, and whether
    every process has written where it stands.
    """
    (actor,), (rollout,), (idle,) = await asyncio.gather(
        scheduler.submit(_job("actor", "train")),
        scheduler.submit(_job("rollout", "infer")),
        scheduler.submit(_job("critic", "train")),
    )
    for trainer in (actor, idle):
        await _start_trainer(trainer, _HELD_S)
    await rollout.call("start", SPEC, timeout_s=CALL_S)
    if _raised(scheduler, "rollout"):
        raise Inconclusive(f"the machine needed {_BOUND_S:g} s from one start of a worker to the next")
    calls = [
        asyncio.ensure_future(actor.call("save_weights", "none", timeout_s=CALL_S)),
        asyncio.ensure_future(rollout.call("generate", asking("wait", gate="never"), timeout_s=CALL_S)),
    ]
    try:
        gaps = _Gaps()
        for _ in range(_LOOKS):
            if _raised(scheduler, "rollout"):
                break
            with contextlib.suppress(ArealError):  # as a run asks, whether it moves or not
                await rollout.call("status", timeout_s=CALL_S)
            await asyncio.sleep(_BOUND_S / _LOOKS * 2)
            gaps.look()
        found: dict[str, object] = {role: _raised(scheduler, role) for role in ("actor", "rollout", "critic")}
        if found["critic"] == "RolloutError" and gaps.longest_s > _BOUND_S / 2:
            raise Inconclusive(f"the machine did not look for {gaps.longest_s:.1f} s: all of the run may be ended")
        told = _text(scheduler, "rollout")
        found["told"] = all(f"{part} (" in told for part in ("actor/0 was asked for 1 save_weights", "1 generate"))
        found["stacks"] = bool(told) and await _stacks_are_written(Path(scheduler.config.log_dir))
        return found
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _stacks_are_written(logs: Path) -> bool:
    """Wait until workers and controller have written where they stand."""
    names = ("actor-0.log", "rollout-0.log", "critic-0.log", CONTROLLER_LOG)
    for _ in range(int(CALL_S / _LOOK_S)):
        texts = [path.read_text(errors="replace") for path in map(logs.joinpath, names) if path.exists()]
        if sum("most recent call first" in text for text in texts) == len(names):
            return True
        await asyncio.sleep(_LOOK_S)
    return False


async def _what_poll_raises_of_late(scheduler: Scheduler) -> str:
    """Let a trainer miss the deadline of a call; return what its poll raises then."""
    (actor,) = await scheduler.submit(_job("actor", "train"))
    await _start_trainer(actor, _LATE_S)
    with contextlib.suppress(WorkerTimeout):
        await actor.call("save_weights", "none", timeout_s=_LATE_S / 4)
        raise Inconclusive(f"a call that takes {_LATE_S:g} s met its deadline of a quarter")
    return _raised(scheduler, "actor")


async def _what_poll_raises_of_loading(scheduler: Scheduler) -> dict[str, str]:
    """Let a trainer load for longer than the bound, answer for as long, and then answer nothing.

    Return what its poll raises, each time.
    """
    (actor,) = await scheduler.submit(_job("actor", "train"))
    await _start_trainer(actor, _HELD_S, loads_s=2 * _SHORT_S)
    loading = _raised(scheduler, "actor")
    gaps = _Gaps()
    while gaps.all_s < 2 * _SHORT_S:
        await actor.call("set_version", 1, timeout_s=CALL_S)
        await asyncio.sleep(_SHORT_S / _LOOKS)
        gaps.look()
    answering = _raised(scheduler, "actor")
    if answering and gaps.longest_s > _SHORT_S / 2:
        raise Inconclusive(f"the machine needed {gaps.longest_s:.1f} s from one call to the next")
    call = asyncio.ensure_future(actor.call("save_weights", "none", timeout_s=CALL_S))
    await asyncio.wait({call}, timeout=2 * _SHORT_S)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return {"loading": loading, "answering": answering, "saving": _raised(scheduler, "actor")}


async def _what_submit_raises(scheduler: Scheduler) -> tuple[str, bool]:
    """Ask for a worker; return what that raises, and whether it names the address that is not of this machine."""
    try:
        await scheduler.submit(_job("rollout", "infer"))
    except ArealError as error:
        return type(error).__name__, _ELSEWHERE in str(error)
    return "", False


async def _closes_in_good_order(scheduler: Scheduler) -> bool:
    """Cancel a worker whose engine takes a moment to close; return whether it was waited for."""
    (worker,) = await scheduler.submit(_job("rollout", "infer"))
    await worker.call("start", attrs.evolve(SPEC, options={"lingers_s": _LINGERS_S}), timeout_s=CALL_S)
    (status,) = scheduler.poll("rollout")
    await scheduler.cancel("rollout")
    return "closed in good order" in await asyncio.to_thread(Path(status.log_path).read_text)


class _Gaps:
    """The time from one look to the next, on a machine that may have something else to do."""

    def __init__(self) -> None:
        self._began = self._last = asyncio.get_running_loop().time()
        self.longest_s = self.all_s = 0.0

    def look(self) -> None:
        now = asyncio.get_running_loop().time()
        self.longest_s, self.all_s = max(self.longest_s, now - self._last), now - self._began
        self._last = now


async def _start_trainer(worker: Worker, held_s: float, loads_s: float = 0.0) -> None:
    context = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="tcp://x:1")
    spec = TrainSpec(role="actor", model_path="none", options={"held_s": held_s, "loads_s": loads_s})
    await worker.call("start", spec, context, timeout_s=CALL_S)


def _raised(scheduler: Scheduler, role: str) -> str:
    return type(error).__name__ if (error := _error(scheduler, role)) else ""


def _text(scheduler: Scheduler, role: str) -> str:
    return error.why if (error := _error(scheduler, role)) else ""


def _error(scheduler: Scheduler, role: str) -> ArealError | None:
    try:
        scheduler.poll(role)
    except ArealError as error:
        return error
    return None


def _job(role: str, engine_role: str) -> Job:
    return Job(role=role, num_workers=1, engine_role=engine_role, backend=NAME, imports=PROBE_FILES)


_TOLD = {"told": True, "stacks": True}
_EVERYWHERE = (str(IPv4Address(0)), str(IPv6Address(0)))
_BY_CHECKS = "checks set it themselves, and look that it is obeyed"

_CHANNEL = "areal_local.scheduler.channel"
_CROSSED = "frames of calls are a byte less, as many, a byte more and multiples: scheduler.calls.values"
_TOGETHER = "messages that go together; tests of areal-local send more at once"

LOCAL = Adapter(
    no_threshold={
        f"{_CHANNEL}:PIECE_BYTES": _CROSSED,
        f"{_CHANNEL}:ZERO_COPY_BYTES": _CROSSED,
        f"{_CHANNEL}:BUNDLE_BYTES": _TOGETHER,
        f"{_CHANNEL}:MAX_BUNDLE": _TOGETHER,
        f"{_CHANNEL}:MAX_MESSAGES_PER_TURN": "how many are received before others have a turn",
        "areal_local.scheduler.process:_LOG_TAIL_BYTES": "how much of a log is read for its last lines",
    },
    variants={
        "network": Variant(
            options={"listen_on_all": True, "host": "127.0.0.2"},
            shows=_place,
            gives=([_EVERYWHERE[0]], "127.0.0.2", []),
            checks=_NETWORK,
        ),
        "restarted": Variant(
            options={"progress_timeout_s": _BOUND_S},
            shows=_what_polls_raise,
            gives={**dict.fromkeys(("actor", "rollout", "critic"), "WorkerTimeout"), **_TOLD},
            again=False,
        ),
        "loading": Variant(
            options={"progress_timeout_s": _SHORT_S},
            shows=_what_poll_raises_of_loading,
            gives={"loading": "", "answering": "", "saving": "WorkerTimeout"},
            again=False,
        ),
        "ended": Variant(
            options={"progress_timeout_s": _BOUND_S, "stalled": "end"},
            shows=_what_polls_raise,
            gives={"actor": "RolloutError", "rollout": "RolloutError", "critic": "", **_TOLD},
            again=False,
        ),
        "late": Variant(  # and 0 is never, not at once
            options={"stalled": "end", "progress_timeout_s": 0.0},
            shows=_what_poll_raises_of_late,
            gives="",
            again=False,
        ),
        "elsewhere": Variant(
            options={"host": _ELSEWHERE}, shows=_what_submit_raises, gives=("ResourceError", True), again=False
        ),
        "impatient": Variant(options={"stop_timeout_s": 0.0}, shows=_closes_in_good_order, gives=False, again=False),
    },
    bounds={
        "host": Bounds(takes=("127.0.0.1", _ELSEWHERE, "::1"), refuses=(*_EVERYWHERE, "somewhere", "")),
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
    },
)
