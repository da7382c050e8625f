"""`areal`, but one process is killed, or Ctrl-C pressed, at a boundary.

    python -m tests.exactly_once.killed_run RECORD VICTIM AT ...

A boundary is where the controller tells something (an event, a step's numbers, an episode, the fate of a group) or asks
a worker for something, before it asks and after the answer. Each is called by its kind and by how often that kind came
before: `ask actor train_step #2`. Every one is appended to RECORD, with the victims that live at that moment.

Knows: where boundaries are, how each victim is found, and SIGKILL.
Does not know: what a run owes after that; `enumeration` does.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from areal_core.cli.main import main
from areal_core.observe.events import EventLog
from areal_core.observe.metrics import MetricsStream
from areal_episodes.store import Store
from areal_local.scheduler.rpc import RpcClient

CONTROLLER, TRAINER, REPLICA, REWARD = VICTIMS = ("controller", "trainer", "replica", "reward")
CTRL_C = "ctrl-c"
"""No process: the run is asked to stop."""
NOBODY = "nobody"
_LOGS = {TRAINER: "actor-0.log", REPLICA: "rollout-0.log"}
_REWARD_MODULE = "areal_local.rewards.process_main"


class Boundaries:
    """Counts boundaries, writes them down, and kills at one of them."""

    def __init__(self, record: Path, victim: str, at: str) -> None:
        """Watch for the boundary called `at`; the victim `nobody` is never killed."""
        self._record, self._victim, self._at = record, victim, at
        self._counts: Counter[str] = Counter()

    def cross(self, kind: str) -> None:
        """Pass one boundary."""
        self._counts[kind] += 1
        name = f"{kind} #{self._counts[kind]}"
        if self._victim == NOBODY:
            with self._record.open("a") as lines:
                lines.write(json.dumps({"boundary": name, "alive": sorted(alive())}) + "\n")
        elif name == self._at:
            self._record.write_text(name)  # proof that the boundary came
            if self._victim == CTRL_C:
                signal.raise_signal(signal.SIGINT)
            else:
                _kill(alive()[self._victim])


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
    with suppress(psutil.NoSuchProcess):
        while victim.status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()


def watch(boundaries: Boundaries) -> None:
    """Let everything in this process that is a boundary say so."""
    _after(EventLog, "write", lambda _, kind, **__: f"event {kind}", boundaries)
    _after(MetricsStream, "write", lambda *_: "metrics", boundaries)
    _after(Store, "ended", lambda *_: "episode", boundaries)
    _after(Store, "settled", lambda *_, **__: "group", boundaries)
    call = RpcClient.call

    async def crossing(self: RpcClient, method: str, *args: Any, timeout_s: float) -> Any:
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


if __name__ == "__main__":
    record, victim, at, *words = sys.argv[1:]
    watch(Boundaries(Path(record), victim, at))
    sys.exit(main(words))
