"""Who holds the event loop of a run: told by name while it happens.

A workflow that computes, or calls something that waits, without `await` stops everything else in the controller:
other episodes, the trainer's next step, Ctrl-C. A thread sees that the loop is late and names the line that holds it.

Knows: one event loop, the thread it runs in, and which frames are a user's.
Does not know: what the line does. Hears of a run as a sink of its metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType

LATE_S = 5.0
"""How long a user's own code may hold the loop before it is told."""
PERIOD_S = 1.0
MAX_STACK = 4000
"""Characters of a stack that are told, the innermost ones."""
_LIBRARIES = str(metadata.distribution("attrs").locate_file(""))
_OTHERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), _LIBRARIES, "<")


class LoopWatch:
    """Satisfies `areal_core.plugins.hooks.MetricSink`: watches from the run's start to its end.

    Made in the event loop's own thread, by the loop.
    """

    def __init__(self, tell: Callable[..., None], *, now: Callable[[], float] = time.monotonic) -> None:
        """Watch nothing yet; `tell` takes events, from another thread."""
        self._tell, self._now = tell, now
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._asked_s: float | None = None
        self._told = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A step needs no looking at."""

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._closing.set()

    def look(self) -> None:
        """Ask the loop for a sign of life, or see how long it owes one."""
        if self._asked_s is None:
            self._asked_s = self._now()
            self._loop.call_soon_threadsafe(self._alive)
        elif not self._told and (late := self._now() - self._asked_s) >= LATE_S:
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None and (where := blamed(frame)):
                self._told = True
                self._report(
                    "event_loop_held", late, where=where, stack="".join(traceback.format_stack(frame))[-MAX_STACK:]
                )

    def _alive(self) -> None:
        asked, self._asked_s = self._asked_s, None
        if self._told and asked is not None:
            self._told = False
            self._report("event_loop_free", self._now() - asked)

    def _report(self, kind: str, seconds: float, **fields: str) -> None:
        with contextlib.suppress(OSError):  # the disk's error is told by who needs the disk
            self._tell(kind, seconds=round(seconds, 1), **fields)

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while not self._closing.wait(PERIOD_S):
                self.look()


def blamed(frame: FrameType) -> str:
    """Return the line that holds a thread: the innermost one of a user's own file; empty if none is.

    Example: "rewards.py:12 in judge: time.sleep(30)"
    """
    for line in _users(frame):
        return f"{line.filename}:{line.lineno} in {line.name}: {line.line}"
    return ""


def watch_run(run_folder: Path) -> LoopWatch:
    """Return a watch of the running loop that writes into a run's events and on the terminal, and has begun."""
    path = run_folder / "events.jsonl"

    def tell(kind: str, **fields: object) -> None:
        line = json.dumps({"time": time.time(), "kind": kind, **fields}) + "\n"
        with path.open("ab", buffering=0) as events:  # one write, whole, wherever the end is
            events.write(line.encode())
        if "where" in fields:
            held = f"everything waits: the event loop is held for {fields['seconds']} s by {fields['where']}"
            sys.stderr.write(f"{held}\n  fix: await what waits, and compute in a thread (asyncio.to_thread)\n")

    watch = LoopWatch(tell)
    watch.start()
    return watch


def _users(frame: FrameType) -> list[traceback.FrameSummary]:
    """Return the frames of a user's own files, innermost first."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    summaries = traceback.StackSummary.extract((each, each.f_lineno) for each in frames)
    modules = [str(each.f_globals.get("__name__", "")) for each in frames]
    return [s for s, module in zip(summaries, modules, strict=True) if _is_users(s.filename, module)]


def _is_users(filename: str, module: str) -> bool:
    ours = module == "__main__" or (module.startswith("areal_") and not module.startswith("areal_user_"))
    return not ours and not filename.startswith(_OTHERS)
