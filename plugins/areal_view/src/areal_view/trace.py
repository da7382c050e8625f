"""`areal trace RUN`: the timeline of a run in the trace format of Chrome and Perfetto.

Knows: that format; everything is written as it is read, so a run of any length takes the same memory.
Does not know: what a part of a step is (`timeline`).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import Parameter

from areal_core.contract.errors import ArealError, RunFolderError, StorageError
from areal_episodes.reader import Reader
from areal_view.lines import GrowingLines, Record
from areal_view.series import numbers
from areal_view.state import StepTimes
from areal_view.timeline import CONTROLLER, TRAINER, of_step

_COUNTERS = ("reward", "loss", "staleness_mean", "in_flight", "buffered")
_OF_EPISODE = ("id", "fate", "step", "reward", "output_tokens", "oldest_version", "error")
_PER_STEP = {"batch_handed_over", "weights_unchanged"}


def trace(
    run_folder: Path,
    *,
    out: Annotated[Path | None, Parameter(help="Where to; RUN/trace.json without it.")] = None,
    episodes: Annotated[bool, Parameter(help="Every episode under its replica.")] = True,
) -> int:
    """Write what controller, trainer and replicas of a run did, for ui.perfetto.dev or chrome://tracing.

    Parameters
    ----------
    run_folder:
        The folder the run writes into, also while it goes on.
    """
    if not any((run_folder / name).is_file() for name in ("metrics.jsonl", "events.jsonl")):
        raise RunFolderError(
            f"{run_folder} holds no run", why="there is no metrics.jsonl in it", fix="name the folder a run writes into"
        )
    target = out or run_folder / "trace.json"
    unnamed = target.with_name(target.name + ".part")
    try:
        with os.fdopen(os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            num_events = write_trace(run_folder, file, episodes=episodes)
        unnamed.rename(target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written", why=str(error), fix="name another file with --out") from error
    sys.stdout.write(f"{target}  {num_events} events; open it at ui.perfetto.dev\n")
    return 0


def write_trace(run_folder: Path, file: TextIO, *, episodes: bool = True) -> int:
    """Write the trace of a run; return how many events it has."""
    writer = _Writer(file)
    file.write('{"displayTimeUnit":"ms","traceEvents":[')
    _follow(run_folder / "metrics.jsonl", lambda record: _step(writer, record))
    _follow(run_folder / "events.jsonl", lambda record: _event(writer, record))
    if episodes:
        for fact in _episodes(run_folder):
            _episode(writer, fact)
    file.write("\n]}\n")
    return writer.num_events


class _Writer:
    """Events, one a line; each process of the run gets a number and a name."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._numbers: dict[str, int] = {}
        self.num_events = 0

    def write(self, process: str, kind: str, name: str, at_s: float, **more: Any) -> None:
        """Write one event, if its time is one. Any: JSON, as the format wants it."""
        if not math.isfinite(at_s * 1e6):
            return
        if process not in self._numbers:
            number = self._numbers[process] = len(self._numbers) + 1
            self._line({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": process}})
            order = {CONTROLLER: 0, TRAINER: 1}.get(process, 2)
            self._line({"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": order}})
        self._line({"ph": kind, "pid": self._numbers[process], "tid": 0, "name": name, "ts": at_s * 1e6, **more})
        self.num_events += 1

    def _line(self, event: Record) -> None:
        self._file.write(("\n" if self._file.tell() < 64 else ",\n") + json.dumps(event, allow_nan=False))


def _step(writer: _Writer, record: Record) -> None:
    times = StepTimes.of(record)
    if times is None:
        return
    for span in of_step(times):
        writer.write(span.lane, "X", span.doing, span.start, dur=(span.end - span.start) * 1e6, args={"of": span.text})
    known = dict(numbers(record))
    for name in _COUNTERS:
        if name in known:
            writer.write(CONTROLLER, "C", name, times.end, args={name: known[name]})


def _event(writer: _Writer, record: Record) -> None:
    kind, at = str(record.pop("kind", "")), dict(numbers(record)).get("time")
    if at is not None and kind not in _PER_STEP:
        writer.write(CONTROLLER, "i", kind, at, s="g", args=_plain(record))


def _episode(writer: _Writer, fact: Any) -> None:
    """Write when an episode was in flight. Any: as `Reader.facts` gives it."""
    name = fact["task_id"] if fact["task_index"] < 0 else f"{fact['task_id']} #{fact['member']}"
    args = _plain({key: fact[key] for key in _OF_EPISODE})
    same = {"cat": "episode", "id": fact["id"]}
    process = fact["replica"] or "replica ?"
    writer.write(process, "b", name, fact["started"], args=args, **same)
    writer.write(process, "e", name, fact["started"] + fact["seconds"], **same)


def _plain(record: Record) -> Record:
    """Return a record without what JSON has no word for."""
    return {k: v if isinstance(v, str | int) or v is None else str(v) for k, v in record.items()}


def _episodes(run_folder: Path) -> Iterator[Any]:
    try:
        reader = Reader(run_folder)
    except ArealError:  # the run kept none
        return
    with reader:
        yield from reader.facts()


def _follow(path: Path, take: Callable[[Record], None]) -> None:
    lines = GrowingLines(path, take=take, forget=lambda: None)
    lines.read()
    while not lines.caught_up:
        lines.read()
