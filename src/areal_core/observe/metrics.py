"""The numbers of a run: one record per step, in `metrics.jsonl` and in whatever loggers are asked for.

Knows: steps, the file, and that a logger may fail.
Does not know: what the numbers mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from areal_core.observe.events import EventLog
from areal_core.observe.jsonl import JsonLines, read_lines, rewrite
from areal_core.plugins.hooks import MetricSink

Sink = TypeVar("Sink", bound=MetricSink)


@runtime_checkable
class MetricsLogger(MetricSink, Protocol):
    """A sink with a beginning: the role `logger`. Any exception it raises disables it, never the run."""

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Open it. Any: the run's configuration as plain data. `first_step` is above 0 on resume."""


class MetricsStream:
    """Write every step to the file, and its numbers to each logger. One per run, in the controller.

    Args:
        path: the run's `metrics.jsonl`.
        loggers: by name, not started yet.
        sinks: of hook plugins; they have begun.
        events: where a logger that failed is written down.
        resume_step: the last step the resumed run keeps; later lines of the file are
            dropped, for those steps will be made again. None for a new run.
        resume_record: of that step; written if its line is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        loggers: Mapping[str, MetricsLogger] | None = None,
        sinks: Sequence[MetricSink] = (),
        events: EventLog | None = None,
        resume_step: int | None = None,
        resume_record: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._missing = resume_record if path.exists() else None
        if resume_step is not None and path.exists():
            rewrite(path, self._kept(read_lines(path), resume_step))
        self._lines = JsonLines(path)
        self._to_start = dict(loggers or {})
        hooked = {f"hook {number}": sink for number, sink in enumerate(sinks)}
        self._loggers: dict[str, MetricSink] = {**self._to_start, **hooked}
        self._events = events
        self._first_step = resume_step or 0
        self._now = now

    def start(self, run: str, folder: Path, config: Mapping[str, Any]) -> None:
        """Start every logger. Any: the run's configuration as plain data."""
        self._each("start", self._to_start, lambda logger: logger.start(run, folder, config, self._first_step))
        if self._missing:
            self.write(self._missing)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one step's record, which holds at least `step`. Any: numbers, and small mappings of numbers.

        Raises:
            StorageError: the file cannot be written. Loggers never raise.
        """
        self._lines.write({"time": self._now(), **record})
        step, values = int(record["step"]), flat(record)
        self._each("log", self._loggers, lambda logger: logger.log(step, values))

    def close(self) -> None:
        """Close the file and every logger. Idempotent."""
        self._lines.close()
        self._each("close", self._loggers, lambda logger: logger.close())
        self._loggers.clear()

    def _kept(self, records: Iterator[dict[str, Any]], last: int) -> Iterator[dict[str, Any]]:
        for record in records:
            if record.get("step", 0) <= last:
                self._missing = None if record.get("step") == last else self._missing
                yield record

    def _each(self, action: str, loggers: Mapping[str, Sink], call: Callable[[Sink], None]) -> None:
        for name, logger in list(loggers.items()):
            try:
                call(logger)
            except Exception as error:  # whatever a third party's client raises, the run goes on without it
                del self._loggers[name]
                if self._events is not None:
                    self._events.write("logger_disabled", logger=name, action=action, error=repr(error))


def flat(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record; `{"a": {"b": 1}}` gives `{"a/b": 1.0}`. Any: the rest is left out."""
    values: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            values.update({f"{name}/{inner}": number for inner, number in flat(value).items()})
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            values[name] = float(value)
    return values
