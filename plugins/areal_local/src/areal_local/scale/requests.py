"""Ask a live run for another number of replicas: small files in its folder, answered in its folder.

    scale/<id>.request   {"replicas": 3}
    scale/<id>.answer    {"state": "done", "replicas": 3}

Knows: those files, and how far a request has come.
Does not know: how a fleet grows (`areal_core.fleet.elastic`) or how an answer is shown (`command`).

Each file appears whole, by a rename. The run folder is its owner's alone, so whoever can write there may ask.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import field, frozen

from areal_core.contract import errors
from areal_core.contract.clock import Clock, SystemClock
from areal_core.contract.errors import (
    ArealError,
    ConfigError,
    ResourceError,
    RunFolderError,
    StorageError,
    WorkerTimeout,
)
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.extensions import ScalableFleet

PERIOD_S = 1.0
"""Between two looks of a run at its requests."""
_LOOK_S = 0.1
_FOLDER = "scale"


class State(StrEnum):
    """How far a request has come."""

    ACCEPTED = "accepted"
    """The new processes are there; engines load, or replicas leave."""
    DONE = "done"
    FAILED = "failed"
    """The fleet is not what was asked for and nothing moves any more; or it was refused, and nothing moved."""
    SUPERSEDED = "superseded"
    """A later request wants another number."""


@frozen(kw_only=True)
class Answer:
    """What a run says to a request. `replicas` serve at that moment; `error` is set when it failed.

    Example: Answer(state="accepted", replicas=1)
    """

    state: State = field(converter=State)
    replicas: int
    error: ArealError | None = None


class Inbox:
    """The run's end: takes requests one after another and answers each."""

    def __init__(self, run_folder: Path, fleet: ScalableFleet, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        self._folder = run_folder / _FOLDER
        self._fleet = fleet
        self._clock = clock or SystemClock()
        self._current: tuple[str, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for requests, once a second."""
        self._task = asyncio.create_task(self._run(), name="scale requests")

    def check(self) -> None:
        """Raise what ended the looking, for `Supervisor.watch_with`."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Take no more requests. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def look(self) -> None:
        """Take the requests there are, oldest first, then see whether the last one is done."""
        for path in _requests(self._folder):
            await self._take(path)
        if self._current is not None and not self._fleet.moving:
            (request, wanted), self._current = self._current, None
            have = self._fleet.num_serving
            if have == wanted:
                self._answer(request, State.DONE)
            else:
                self._answer(request, State.FAILED, _short(wanted, have))

    async def _run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(PERIOD_S)

    async def _take(self, path: Path) -> None:
        request = path.stem
        try:
            wanted = _taken(path)
            await self._fleet.resize(wanted)
        except ArealError as error:
            self._answer(request, State.FAILED, error)
            return
        if self._current is not None:
            self._answer(self._current[0], State.SUPERSEDED)
        self._current = (request, wanted)
        self._answer(request, State.ACCEPTED)

    def _answer(self, request: str, state: State, error: ArealError | None = None) -> None:
        said: dict[str, object] = {"state": state.value, "replicas": self._fleet.num_serving}
        if error is not None:
            said["error"] = {"type": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
        _write(self._folder / f"{request}.answer", said)


class ScaleRequests:
    """Satisfies `areal_core.plugins.extensions.ScaleRequests`."""

    def clear(self, run_folder: Path) -> None:
        """Drop what was asked of an earlier run in this folder."""
        for path in (run_folder / _FOLDER).glob("*"):
            path.unlink(missing_ok=True)

    def inbox(self, run_folder: Path, fleet: ScalableFleet) -> Inbox:
        """Return the run's end."""
        return Inbox(run_folder, fleet)


REQUESTS = ScaleRequests()


class Asking:
    """The other end: one request, and what the run says to it."""

    def __init__(self, folder: RunFolder, replicas: int) -> None:
        """Send the request.

        Raises:
            ConfigError: fewer than one replica.
            RunFolderError: no live run owns the folder.
            StorageError: it cannot be written.
        """
        _check(replicas)
        self._run = folder
        if not folder.live():
            raise RunFolderError(
                f"no run is active in {folder.root}",
                why="the number of replicas can be changed only during a run",
                fix=f"start it with another number: areal train --resume {folder.root} rollout.backend=NAME:dN",
            )
        self._path = folder.root / _FOLDER / f"{uuid.uuid4().hex}.request"
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(self._path, {"replicas": replicas})
        except OSError as exc:
            raise StorageError(f"the request cannot be written to {self._path.parent}", why=str(exc)) from exc

    def answer(self, *, after: State | None, within_s: float) -> Answer:
        """Wait for an answer that says something else than `after`.

        Raises:
            RunFolderError: the run ended first.
            WorkerTimeout: none came within that time.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = _read(self._path.with_suffix(".answer"))
            if found is not None and found.state is not after:
                return found
            if not self._run.live():
                raise RunFolderError(
                    f"the run in {self._run.root} ended before its fleet was what you asked for",
                    why="replicas join at a weight update, and there is none left",
                    fix=f"resume it with another number: areal train --resume {self._run.root} rollout.backend=NAME:dN",
                )
            time.sleep(_LOOK_S)
        raise WorkerTimeout(
            f"the run in {self._run.root} did not answer within {within_s:g} s",
            why="it may be starting, or waiting for its next weight update",
            fix=f"see what it does: tail -f {self._run.events}",
        )

    def forget(self) -> None:
        """Remove what is left of the request and its answer. A request not taken yet is withdrawn."""
        for path in (self._path, self._path.with_suffix(".answer")):
            path.unlink(missing_ok=True)


def _check(replicas: int) -> None:
    if replicas < 1:
        raise ConfigError(
            f"a run cannot have {replicas} replicas",
            why="at least one must serve",
            fix="ask for 1 or more; to stop the run press Ctrl-C in its terminal",
        )


def _requests(folder: Path) -> list[Path]:
    try:
        found = [(entry.stat().st_mtime_ns, Path(entry.path)) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    return [path for _, path in sorted(found) if path.suffix == ".request"]


def _taken(path: Path) -> int:
    """Take a request out of its folder; return how many replicas it wants."""
    text = path.read_text()
    path.unlink()
    try:
        replicas = json.loads(text)["replicas"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"{path.name} is not a request", why=repr(exc), fix="use: areal scale DIR N") from exc
    if type(replicas) is not int:  # True is no number of replicas
        raise ConfigError(f"{path.name} asks for {replicas!r} replicas", fix="use: areal scale DIR N")
    _check(replicas)
    return replicas


def _read(path: Path) -> Answer | None:
    try:
        said: Mapping[str, Any] = json.loads(path.read_text())  # Any: as `Inbox` writes it
    except FileNotFoundError:
        return None
    told = said.get("error")
    return Answer(state=said["state"], replicas=said["replicas"], error=_error(told) if told else None)


def _error(told: Mapping[str, str]) -> ArealError:
    kind = getattr(errors, told["type"], ArealError)
    kind = kind if isinstance(kind, type) and issubclass(kind, ArealError) else ArealError
    return kind(told["what"], why=told["why"], fix=told["fix"])


def _write(path: Path, said: Mapping[str, object]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(said))
    partial.rename(path)


def _short(wanted: int, have: int) -> ArealError:
    return ResourceError(
        f"{wanted} replicas were requested and {have} are serving",
        why="replicas were lost meanwhile; events.jsonl says which, and why",
        fix="ask again, or read the logs of the workers",
    )
