"""The journal of a run: what happened, when, in `events.jsonl`.

Knows: that an event has a time, a kind and fields.
Does not know: which kinds there are; whoever writes one decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from areal_core.observe.jsonl import JsonLines
from areal_core.plugins.redact import redact

RUN_STARTED = "run_started"
"""Event with `name`, `steps`, `plan`, `max_staleness`, `train_backend` and `infer_backend`; the last one counts."""
RUN_ENDED = "run_ended"
"""Event with `status`: finished, stopped or failed. A run without one crashed."""
RUN_RESTARTED = "run_restarted"
"""Event with `number`, `error`, the `version` at which a run that lost a trainer starts again, and who is `kept`."""
WEIGHTS_TRAVEL = "weights_travel"
"""Event with `transport`, `pause` and `why`: how weights reach the fleet, from where workers were placed."""
EVALUATED = "evaluated"
"""Event with `version` and `reward`."""
WARNING = "warning"
"""Event with `name`, `step`, `value`, `threshold`, `says`, `advice`, and `over`: True where it holds no more."""

MAX_FIELD = 4000
"""Characters kept of a text field: an event must not grow with a log."""


class EventSink(Protocol):
    """Where parts of a run tell what happened. Must not block or raise."""

    def __call__(self, kind: str, **fields: Any) -> None:
        """Take one event. Any: plain data."""


def ignore_event(kind: str, **fields: Any) -> None:
    """Take an event and do nothing. Any: as above."""


class EventLog:
    """Append events; each is on its way to the disk before `write` returns. One per run, in the controller.

    Example of a line: {"time": 1760000000.5, "kind": "checkpoint", "version": 40, "path": "..."}
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._lines = JsonLines(path)
        self._now = now

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event. Any: plain data; secrets are redacted, long text loses its middle."""
        self._lines.write({"time": self._now(), "kind": kind, **{name: _cut(v) for name, v in redact(fields).items()}})

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._lines.close()


def _cut(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= MAX_FIELD:
        return value
    half = MAX_FIELD // 2
    return f"{value[:half]}\n... {len(value) - MAX_FIELD} characters ...\n{value[-half:]}"
