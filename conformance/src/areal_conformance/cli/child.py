"""The processes that make the checks: pytest, with the suite's configuration and nothing of the host's.

Knows: their command line, their environment, when one must be given up, and when a fresh one has to go on.
Does not know: what their journals say beyond that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import attrs
import psutil

import areal_conformance
from areal_conformance.deadline import Deadline
from areal_conformance.report.parts import law_line
from areal_conformance.run.asked import Asked
from areal_conformance.run.journal import Reader, Story

POLL_S = 0.1
START_LIMIT_S = 300.0
"""Until the run is prepared: an adapter may import its engine."""
CLOSE_LIMIT_S = 300.0
"""Between checks and after the last."""
END_LIMIT_S = 30.0
"""For a process that another one takes over from."""
END_S = 10.0
MOST_PROCESSES = 30
"""A backend that ends every process it is checked in is not tried for ever."""
WORTH = 30
"""Checks that must be left for one more process: it takes as long to start as most of them together."""
_MAX_TAIL = 4000
INTERRUPTED = "the run was interrupted"
"""What `follow` returns where a person stopped the run."""


def arguments_of(asked: Asked, command: str) -> list[str]:
    """Return the command line: no ini file, conftest, plugin or cache of the host has a say in it.

    `-P` keeps the current folder off the import path, as it is for the `areal` command itself.
    """
    package = Path(areal_conformance.__file__).parent
    flags = ("-c", str(package / "suite.ini"), "--rootdir", str(package), "--confcutdir", str(package), "--noconftest")
    options = {
        "--areal-backend": asked.backend,
        "--areal-role": asked.role,
        "--areal-pair": asked.pair,
        "--areal-mutant": asked.mutant,
        "--areal-device": asked.device,
        "--areal-ranks": str(asked.ranks),
        "--areal-level": str(asked.level),
        "--areal-ledger": asked.ledger,
        "--areal-bounds": asked.bounds,
        "--areal-only-failed": asked.failed_in,
        "--areal-patience": f"{asked.patience:g}",
        "--areal-contract": asked.contract,
        "--areal-zoo": str(asked.zoo),
        "--areal-jobs": str(asked.jobs),
        "--areal-command": command,
    }
    given = [f"{name}={value}" for name, value in options.items() if value]
    given += [f"--areal-check={key}" for key in asked.only] + [f"--areal-import={path}" for path in asked.imports]
    # The last two would look through all of torch five times when the run ends, for what no check is judged by.
    left_out = ("cacheprovider", "unraisableexception", "threadexception")
    plugins = [word for name in left_out for word in ("-p", f"no:{name}")] + ["-p", "areal_conformance.plugin"]
    return [sys.executable, "-P", "-m", "pytest", *flags, *plugins, *given, "--pyargs", "areal_conformance"]


def environment_of(host: Mapping[str, str]) -> dict[str, str]:
    """Return the host's environment without what would change pytest.

    `PYTHONSAFEPATH` keeps the current folder off the import path of what the checks start, too. One thread is what
    tiny models need; a host that sets another number keeps it.
    """
    kept = {name: value for name, value in host.items() if not name.startswith("PYTEST_")}
    kept.setdefault("OMP_NUM_THREADS", "1")
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def follow(
    arguments: list[str],
    environment: Mapping[str, str],
    folder: Path,
    tell: Callable[[Story], None],
    worth: int = WORTH,
) -> tuple[Story, str]:
    """Run processes that make the checks; return their story, and what ended it if it did not end by itself.

    The first says how many there may be. Another one begins where `worth` checks are left for each that there is, and
    each makes the next one that nobody has claimed in `folder`. A check that was given up, or took its process with it,
    is in nobody's way: a fresh process goes on with the rest. `tell` is called after every change, and in between.
    """
    story = Story()
    claims = folder / "claims"
    claims.mkdir(exist_ok=True)
    lanes: list[_Lane] = []

    def begin() -> None:
        journal, output = folder / f"journal-{len(lanes)}.jsonl", folder / f"output-{len(lanes)}.log"
        words = [*arguments, f"--areal-claims={claims}", f"--areal-journal={journal}"]
        lane = _Lane(words, environment, journal, output, claims, Story(rows=story.rows, notes=story.notes))
        lanes.append(lane)

    with _stops() as stops:
        begin()
        try:
            while [lane for lane in lanes if lane.goes_on()] and not stops:
                _together(story, [lane.story for lane in lanes])
                tell(story)
                if len(lanes) < story.jobs and len(story.planned) - len(story.rows) >= worth * len(lanes):
                    begin()
                time.sleep(POLL_S)
        finally:
            _end(lanes)
    _together(story, [lane.story for lane in lanes])
    story.said = "\n".join(lane.said() for lane in lanes if lane.ended or story.record is None)
    tell(story)
    ended = INTERRUPTED if stops and not story.closed else "; ".join(lane.ended for lane in lanes if lane.ended)
    return story, ended


def _together(story: Story, parts: Sequence[Story]) -> None:
    """Put what processes beside each other tell into one story; its rows and notes are theirs already."""
    first = parts[0]
    story.record, story.planned, story.jobs = first.record, first.planned, first.jobs
    story.running = ", ".join(part.running for part in parts if part.running)
    story.refused = first.refused
    story.closed = all(part.closed for part in parts)


class _Lane:
    """One process after another, each of which goes on where the one before was given up."""

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        journal: Path,
        output: Path,
        claims: Path,
        story: Story,
    ) -> None:
        self.story = story
        self.ended = ""
        """What ended the last process, if it did not end by itself."""
        self._over = False
        self._claims = claims
        self._reader = Reader(journal)
        self._output = output
        self._arguments, self._environment = arguments, dict(environment)
        self._num_processes = 0
        self.process: subprocess.Popen[bytes] | None = None
        """None once nothing of its group is left."""
        self._begin()

    def goes_on(self) -> bool:
        """Take in what the process tells; put a fresh one in the place of one that ended before the checks did."""
        if not self._over and (ended := self._ended()) is not None:
            _end([self])
            self._over = True
            self._after(ended)
        return not self._over

    def take(self) -> bool:
        """Take in what the process tells; return whether it told anything."""
        lines = self._reader.lines()
        for line in lines:
            self.story.take(line)
        return bool(lines)

    def said(self) -> str:
        """Return the end of what its processes wrote."""
        return self._output.read_text(encoding="utf-8", errors="replace")[-_MAX_TAIL:]

    def _after(self, ended: str) -> None:
        """Go on with the rest, if the process was given up or taken by a check; that one has no outcome."""
        story = self.story
        lost = story.running if ended else ""
        if lost:
            _lost(story, ended)
        rest = len(list(self._claims.iterdir())) < len(story.planned)
        if not rest or not (lost or story.again):
            self.ended = f"{ended}, while {lost} ran" if lost else ended
        elif self._num_processes == MOST_PROCESSES:
            self.ended = f"{MOST_PROCESSES} processes, one after another, were given up"
        else:
            if lost:
                story.notes.append(f"a fresh process went on behind {lost}: {ended}")
            self._begin()

    def _begin(self) -> None:
        self._over, self.story.again = False, ""
        self._num_processes += 1
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self._arguments,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._deadline = Deadline(START_LIMIT_S)

    def _ended(self) -> str | None:
        """Return what ended the process, empty if it ended by itself or is not needed any more, None if it goes on."""
        story = self.story
        assert self.process is not None
        if (code := self.process.poll()) is not None:
            self.take()
            if story.refused:
                return f"it could not be prepared: {story.refused}"
            if story.again or (code in (0, 1) and not story.running):
                return ""
            return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with {code}"
        if self.take():
            limit = story.limit_s if story.running else END_LIMIT_S if story.again else CLOSE_LIMIT_S
            self._deadline = Deadline(limit)
        if self._deadline.left():
            return None
        return "" if story.again else f"it said nothing for {self._deadline.limit_s:.0f} s and was killed"


def _lost(story: Story, ended: str) -> None:
    """Put in what is known of the check whose process is gone: that, and no outcome."""
    assert story.record is not None
    row = next(row for row in story.record.checks if row.id == story.running)
    told = f"{law_line(story.record, 9)}\nthe process of the check is gone: {ended}"
    story.rows.append(attrs.evolve(row, message=told))
    story.running = ""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let what ends this process end its children first, as Ctrl-C does: they would go on for nobody."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    with _handling((signal.SIGTERM, signal.SIGHUP), stop):
        yield


@contextlib.contextmanager
def _stops() -> Iterator[Sequence[int]]:
    """Give the signals so far that ask this process to end.

    Nothing is raised: where one comes while garbage is collected or an object ends, the exception would be lost.
    """
    came: list[int] = []
    with _handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, _frame: came.append(number)):
        yield came


@contextlib.contextmanager
def _handling(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def _end(lanes: Sequence[_Lane]) -> None:
    """Leave no process of the groups, and take in last words. Idempotent.

    All are asked at once, then forced: also what a process left behind that has ended.
    """
    processes = [lane.process for lane in lanes if lane.process is not None]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS's word for one that has just ended
                os.killpg(process.pid, sign)
        given_up_at = time.monotonic() + END_S
        while _alive({process.pid for process in processes}) and time.monotonic() < given_up_at:
            time.sleep(POLL_S)
    for lane in lanes:
        if lane.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                lane.process.wait(END_S)
        lane.process = None
        lane.take()


def _alive(groups: Collection[int]) -> bool:
    """Whether a process of these groups is there that has not ended; who waits for its parent to look has."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
