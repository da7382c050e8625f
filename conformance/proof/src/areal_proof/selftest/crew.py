"""Worker processes of the self-test: who does what, and what happens when one hangs or dies.

Knows: processes, limits, the order of items.
Does not know: what an item is about.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import cattrs

from areal_conformance.outcome import Outcome
from areal_proof import leavings
from areal_proof.selftest.catalogue import SHIPPED_PLACE
from areal_proof.selftest.work import Ended, Item

START_S = 120.0
ITEMS_A_WORKER = 80
"""A fresh process after so many: what backends broken on purpose leave behind stays small."""


class Listener(Protocol):
    """Hears what the crew does. Called from several threads, one call at a time."""

    def began(self, item: Item) -> None:
        """An item was taken."""

    def ended(self, item: Item, ends: list[Ended]) -> None:
        """An item is done; there is an end for each of its checks."""


def do_all(
    items: Iterable[Item], *, jobs: int, listener: Listener, place: str = SHIPPED_PLACE, limit_s: float | None = None
) -> list[Ended]:
    """Do every item in `jobs` processes; an item whose process hangs or dies ends in errors, the rest goes on.

    The first process prefers items with several ranks, the others items with one, so that those that start
    process groups of their own seldom meet. `limit_s` replaces the limits that checks have by themselves.
    """
    share = _Share(items)
    ends: list[Ended] = []
    lock = threading.Lock()
    stop = threading.Event()

    def work(number: int) -> None:
        worker = _Worker(place, limit_s)
        try:
            while not stop.is_set() and (item := share.take(ranked_first=number == 0)) is not None:
                with lock:
                    listener.began(item)
                found = worker.do(item)
                with lock:
                    ends.extend(found)
                    listener.ended(item, found)
        finally:
            worker.end()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(max(jobs, 1))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stop.set()
        raise
    return ends


class _Share:
    """The items not taken yet: those that take longest first."""

    def __init__(self, items: Iterable[Item]) -> None:
        ordered = sorted(items, key=lambda item: (bool(item.mutant), -len(item.checks)))
        self._ranked = deque(item for item in ordered if item.ranks > 1)
        self._others = deque(item for item in ordered if item.ranks <= 1)
        self._lock = threading.Lock()

    def take(self, *, ranked_first: bool) -> Item | None:
        with self._lock:
            queues = (self._ranked, self._others) if ranked_first else (self._others, self._ranked)
            return next((items.popleft() for items in queues if items), None)


class _Worker:
    """One process, made when first needed, and again after it hung, died or did its share; its files go with it."""

    def __init__(self, place: str, limit_s: float | None) -> None:
        self._place, self._limit_s = place, limit_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()  # Any: JSON
        self._listening: threading.Thread | None = None
        self._done = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def do(self, item: Item) -> list[Ended]:
        process = self._running()
        assert process.stdin is not None
        ends: list[Ended] = []
        running, limit = "(starting)", self._limit_s or START_S
        try:
            process.stdin.write(json.dumps({"item": cattrs.unstructure(item)}) + "\n")
            process.stdin.flush()
        except OSError:
            return self._lost(item, ends, running, "the process was gone")
        while True:
            try:
                line = self._lines.get(timeout=limit)
            except queue.Empty:
                return self._lost(item, ends, running, f"nothing came for {limit:.0f} s; the process was killed")
            if line is None:
                process.wait()
                return self._lost(item, ends, running, f"the process ended with {process.returncode}")
            if "began" in line:
                running, limit = line["began"], self._limit_s or line["limit_s"]
            elif "ended" in line:
                ends.append(Ended(item=item, **line["ended"]))
            elif "done" in line:
                self._done += 1
                if line["threads"] or self._done >= ITEMS_A_WORKER:
                    self.end()
                return ends

    def end(self) -> None:
        process, self._process, self._done = self._process, None, 0
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert self._folder is not None
        self._folder.cleanup()
        leavings.sweep()  # that process's, and those of any other that was killed and that nobody came after
        assert self._listening is not None
        self._listening.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # an item that the process never read
                pipe.close()  # type: ignore[union-attr]  # both are pipes

    def _lost(self, item: Item, ends: list[Ended], running: str, why: str) -> list[Ended]:
        self.end()
        told = {end.check for end in ends}
        for key in item.checks:
            if key not in told:
                message = why if key == running else f"not made: {why} at {running}"
                ends.append(Ended(item=item, check=key, outcome=Outcome.ERROR, message=message))
        return ends

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._folder = tempfile.TemporaryDirectory(prefix="areal-proof-", ignore_cleanup_errors=True)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "areal_proof.selftest.worker", self._place],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", **os.environ, "TMPDIR": self._folder.name},
            )
            self._lines = queue.Queue()
            self._listening = _listen(self._process, self._lines.put)
        return self._process


def _listen(process: subprocess.Popen[str], put: Callable[[dict[str, Any] | None], None]) -> threading.Thread:
    """Read the process's lines in a thread of their own, so that waiting for one can have a limit."""
    lines = process.stdout
    assert lines is not None

    def read() -> None:
        with contextlib.suppress(ValueError):  # a line torn by the end of the process
            for line in lines:
                put(json.loads(line))
        put(None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
