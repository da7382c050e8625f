"""The parent's end of a zygote: jobs, one after another, each with a deadline for every word it says.

Knows: how it is started, told, given up; that nothing of a job is left.
Does not know: what jobs do.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from areal_conformance.outcome import HarnessError

START_S = 300.0
"""Importing torch and an engine from a cold disk."""
END_S = 30.0
Line = dict[str, Any]
"""What a job tells. Any: JSON."""


class Late(Exception):
    """A job said nothing within its deadline, and was killed; `lines` are what it told before."""

    def __init__(self, message: str, lines: list[Line] | None = None) -> None:
        super().__init__(message)
        self.lines = lines or []


class Zygote:
    """One warm process, in a folder of its own, which also has what it and its jobs leave behind when killed."""

    def __init__(self, warm: Iterable[str], cold: Iterable[str], call: str = "", **given: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="areal-mutate-"))
        self._count = 0
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._log = self._folder / "zygote.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "areal_conformance.mutate.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONSAFEPATH": "1", "TMPDIR": str(self._folder)},
                start_new_session=True,
            )
        threading.Thread(target=self._listen, name="areal-mutate-zygote", daemon=True).start()
        self._cold = tuple(cold)
        self.modules: list[str] = []
        """What it has loaded, in the order in which that began to be."""
        self.load(warm, call, **given)

    @property
    def folder(self) -> Path:
        """Return a folder that lives as long as the zygote."""
        return self._folder

    def load(self, warm: Iterable[str], call: str = "", **given: Any) -> None:
        """Have it import modules, so that no later job has to; then call a `module:function`."""
        self._send({"warm": list(warm), "cold": self._cold, "call": call, "with": given})
        self.modules = self._next(START_S)["warm"]

    def do(self, job: str, limit: Callable[[Line], float], **given: Any) -> tuple[list[Line], int]:
        """Fork a child for `module:function`; return what it told, and its exit code.

        Args:
            limit: Seconds within which the next line has to come, given the last one; `{}` before the first.

        Raises:
            Late: it did not come.
        """
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        self._send({"job": job, "with": given, "folder": str(folder)})
        pid = self._next(END_S)["started"]
        told: list[Line] = []
        try:
            while True:
                try:
                    line = self._next(limit(told[-1] if told else {}))
                except Late as error:
                    raise Late(str(error), told) from None
                if "exited" in line:
                    return told, int(line["exited"])
                told.append(line)
        except BaseException:
            self._kill(pid)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End it. Idempotent."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self, pid: int) -> None:
        """Kill a job with all it started, and wait until the zygote has seen it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(pid)
            for process in [child, *child.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(Late, HarnessError):
            while "exited" not in self._next(END_S):
                pass

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def _next(self, within_s: float) -> Line:
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            raise Late(f"nothing came for {within_s:.0f} s") from None
        if line is None:
            self._lines.put(None)  # whoever asks again hears it again
            raise self._gone()
        return line

    def _gone(self) -> HarnessError:
        said = self._log.read_text(errors="replace")[-1500:].strip() if self._log.exists() else ""
        return HarnessError(f"the process that forks mutants is gone: {said}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed while it was read
            for line in self._process.stdout:
                self._lines.put(json.loads(line))
        self._lines.put(None)
