"""`areal`, but processes are killed, or Ctrl-C pressed, at chosen boundaries.

A boundary is where the controller tells something (an event, a step's numbers, an episode, the fate of a group) or asks
a worker for something, before it asks and after the answer; the status of a replica, asked for as time passes and
whatever happens, is none. Each is called by the step that is made, its kind, and how often that kind came before in
this step: `step 3: ask actor train_step #1`.

Knows: where boundaries are, how each victim is found, and SIGKILL.
Does not know: what a run owes after that; `enumeration` does.
"""

from __future__ import annotations

import functools
import json
import os
import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from areal_core.observe.events import RUN_RESTARTED, RUN_STARTED, EventLog
from areal_core.observe.metrics import MetricsStream
from areal_episodes.store import Store
from areal_local.scheduler.rpc import RpcClient

CONTROLLER, TRAINER, REPLICA, REWARD = VICTIMS = ("controller", "trainer", "replica", "reward")
CTRL_C = "ctrl-c"
"""No process: the run is asked to stop."""
_LOGS = {TRAINER: "actor-0.log", REPLICA: "rollout-0.log"}
_REWARD_MODULE = "areal_local.rewards.process_main"


class Boundaries(ABC):
    """Names boundaries, and does what there is to do at each."""

    def __init__(self) -> None:
        self._step = 1
        self._counts: Counter[str] = Counter()

    def cross(self, kind: str) -> None:
        """Pass one boundary."""
        self._counts[kind] += 1
        self.reached(f"step {self._step}: {kind} #{self._counts[kind]}")

    def enter(self, step: int) -> None:
        """Go on with another step, or with the same one again."""
        self._step = step
        self._counts.clear()

    @abstractmethod
    def reached(self, boundary: str) -> None:
        """Do what there is to do here."""


class Recorder(Boundaries):
    """Writes down every boundary, with the victims that live at that moment."""

    def __init__(self, record: Path) -> None:
        super().__init__()
        self._record = record

    def reached(self, boundary: str) -> None:
        """Append a line."""
        with self._record.open("a") as lines:
            lines.write(json.dumps({"boundary": boundary, "alive": sorted(alive())}) + "\n")


class Killer(Boundaries):
    """Kills one victim, once at each of its boundaries that is not on record yet."""

    def __init__(self, record: Path, victim: str, boundaries: Collection[str]) -> None:
        super().__init__()
        self._record, self._victim = record, victim
        self._left = set(boundaries).difference(kills(record))

    def reached(self, boundary: str) -> None:
        """Kill, if it is here; a victim that is not there now, as after a kill, is waited for no longer."""
        if boundary not in self._left:
            return
        if self._victim == CTRL_C:
            self._note(boundary)
            signal.raise_signal(signal.SIGINT)
        elif (victim := alive().get(self._victim)) is not None:
            self._note(boundary)
            _kill(victim)

    def _note(self, boundary: str) -> None:
        """Write it down first: the controller may be the victim."""
        self._left.remove(boundary)
        with self._record.open("a") as lines:
            lines.write(boundary + "\n")


def kills(record: Path) -> list[str]:
    """Return the boundaries at which somebody was killed, in order."""
    return record.read_text().splitlines() if record.exists() else []


def alive() -> dict[str, psutil.Process]:
    """Return the victims that live now, by name."""
    found = {CONTROLLER: psutil.Process()}
    for child in psutil.Process().children():
        with suppress(OSError, psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
            output = Path(f"/proc/{child.pid}/fd/1").readlink().name
            found |= {victim: child for victim, log in _LOGS.items() if log == output}
            if _REWARD_MODULE in child.cmdline():
                found[REWARD] = child
    return found


def _kill(victim: psutil.Process) -> None:
    """Kill a process and see it dead before the controller goes on."""
    os.kill(victim.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)


def watch(boundaries: Boundaries) -> None:
    """Let everything in this process that is a boundary say so."""

    def told(_: object, kind: str, **fields: Any) -> str:
        if kind in (RUN_STARTED, RUN_RESTARTED):
            boundaries.enter(fields["version"] + 1)
        return f"event {kind}"

    _after(EventLog, "write", told, boundaries)
    _after(Store, "ended", lambda *_: "episode", boundaries)
    _after(Store, "settled", lambda *_, **__: "group", boundaries)
    _after(MetricsStream, "write", lambda *_: "metrics", boundaries)
    counted = MetricsStream.write

    def stepped(self: MetricsStream, record: Mapping[str, Any]) -> None:
        counted(self, record)
        boundaries.enter(record["step"] + 1)

    MetricsStream.write = stepped  # type: ignore[method-assign]
    call = RpcClient.call

    async def crossing(self: RpcClient, method: str, *args: Any, timeout_s: float) -> Any:
        if method == "status":
            return await call(self, method, *args, timeout_s=timeout_s)
        role = self.id.partition("/")[0]
        boundaries.cross(f"ask {role} {method}")
        answer = await call(self, method, *args, timeout_s=timeout_s)
        boundaries.cross(f"answer {role} {method}")
        return answer

    RpcClient.call = crossing  # type: ignore[method-assign]


def _after(owner: type, method: str, kind: Callable[..., str], boundaries: Boundaries) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def crossing(*args: Any, **fields: Any) -> Any:
        answer = original(*args, **fields)
        boundaries.cross(kind(*args, **fields))
        return answer

    setattr(owner, method, crossing)
