"""Another process that holds one end of the transport under test, told what to do line by line.

Knows: starting it, asking it, killing it; the answers are plain data.
Does not know: what it runs (`transport_peer`), or what is right.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from areal_conformance.deadline import Deadline
from areal_conformance.outcome import HarnessError, Violation
from areal_conformance.target import Locator
from areal_core.contract.weights import Offer

START_S = 120.0


@frozen(kw_only=True)
class Answer:
    """What a call in the peer gave: plain data, or the error with the names of its classes."""

    value: Mapping[str, Any]  # Any: JSON
    error: str = ""
    kinds: tuple[str, ...] = ()
    died: bool = False

    def __bool__(self) -> bool:
        """Return whether it succeeded."""
        return not self.error


class Peer:
    """One process. Its transport is built when first needed."""

    def __init__(self, locator: Locator, wait_s: float, options: Mapping[str, Any]) -> None:
        """Start it; its transport has these options. Any: JSON."""
        self._wait_s = wait_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "areal_conformance.benches.transport_peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="areal-conformance-peer", daemon=True).start()
        answer = self._ask(START_S, do="locate", locator=attrs.asdict(locator), options=dict(options))
        if not answer:
            raise HarnessError(f"a peer process could not be started: {answer.error}")

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def settle(self, temporary: Path) -> None:
        """Tell it where temporary files go from now on."""
        self.ask("temporary", path=str(temporary))

    def ask(self, do: str, **arguments: Any) -> Answer:
        """Have it do something. Any: JSON. A death is an answer; none in time is a Violation of law 9."""
        given = {name: _plain(value) for name, value in arguments.items()}
        return self._ask(self._wait_s, do=do, **given)

    def reset(self) -> bool:
        """Close its transport; tell whether the process can be used again."""
        if not self.alive:
            return False
        try:
            return bool(self.ask("reset"))
        except Violation:
            return False

    def end(self) -> None:
        """Close its transport and let it come to its end, as a worker that is told to.

        Raises:
            Violation: of law 9; it does not end, or with an error.
        """
        assert self._process.stdin is not None
        told = self.ask("reset")
        if told.error and not told.died:
            raise Violation(f"a process that had an end of the transport cannot close it: {told.error}", law=9)
        self._process.stdin.close()
        deadline, code = Deadline(self._wait_s), None
        while code is None and (left := deadline.left()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(left)
        if code is None:
            raise deadline.late(f"the end of another process did not come within {self._wait_s:g} s", law=9)
        if code:
            raise Violation(f"a process that had an end of the transport ended with exit code {code}", law=9)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _ask(self, wait_s: float, **message: Any) -> Answer:
        assert self._process.stdin is not None
        deadline = Deadline(wait_s)
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._line(deadline)
        except (BrokenPipeError, ValueError):
            line = ""
        except queue.Empty:
            late = deadline.late(f"{message['do']!r} in another process did not end within {wait_s:g} s", law=9)
            self._process.kill()
            raise late from None
        if not line:
            code = self._process.wait()
            return Answer(value={}, error=f"the process died, exit code {code}", died=True)
        told = json.loads(line)
        return Answer(value=told.get("value", {}), error=told.get("error", ""), kinds=tuple(told.get("kinds", ())))

    def _line(self, deadline: Deadline) -> str:
        while left := deadline.left():
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=left)
        raise queue.Empty

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        except ValueError:
            pass  # closed by `kill` while it was read
        self._lines.put("")


def _plain(value: Any) -> Any:
    if isinstance(value, Offer):
        return {"transport": value.transport, "version": value.version, "location": dict(value.location)}
    return value
