"""The process that makes the checks: pytest, with the suite's configuration and nothing of the host's.

Knows: its command line, its environment, and when it must be given up.
Does not know: what its journal says, beyond whether it still goes on, and where a fresh process has to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import attrs

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
INTERRUPTED = "the run was interrupted"
"""What `follow` returns where a person stopped the run."""


def arguments_of(asked: Asked, journal: Path, command: str) -> list[str]:
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
        "--areal-only-failed": asked.failed_in,
        "--areal-patience": f"{asked.patience:g}",
        "--areal-contract": asked.contract,
        "--areal-after": asked.after,
        "--areal-zoo": str(asked.zoo),
        "--areal-journal": str(journal),
        "--areal-command": command,
    }
    given = [f"{name}={value}" for name, value in options.items() if value]
    given += [f"--areal-check={key}" for key in asked.only] + [f"--areal-import={path}" for path in asked.imports]
    plugins = ("-p", "no:cacheprovider", "-p", "areal_conformance.plugin")
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
    journal: Path,
    output: IO[bytes],
    tell: Callable[[Story], None],
) -> tuple[Story, str]:
    """Run the process to its end; return its story, and what ended it if it did not end by itself.

    A check that was given up, or took its process with it, is in nobody's way: a fresh process goes on behind it.
    `tell` is called after every change, and often in between.
    """
    story, reader = Story(), Reader(journal)
    behind: list[str] = []
    with _stops() as stops:
        for _ in range(MOST_PROCESSES):
            story.again = ""
            words = [*arguments, *(f"--areal-after={check}" for check in behind[-1:])]
            ended = _one(words, environment, reader, story, output, tell, stops)
            if stops and not story.closed:
                ended = INTERRUPTED
                break
            check = story.again or (story.running if ended else "")
            if check in ("", *story.planned[-1:], *behind):
                break
            if story.running:
                _lost(story, ended)
            behind.append(check)
        else:
            ended = f"{MOST_PROCESSES} processes were given up"
    tell(story)
    return story, ended


def _lost(story: Story, ended: str) -> None:
    """Put in what is known of the check whose process is gone: that, and no outcome."""
    assert story.record is not None
    row = next(row for row in story.record.checks if row.id == story.running)
    told = f"{law_line(story.record, 9)}\nthe process of the check is gone: {ended}"
    story.rows.append(attrs.evolve(row, message=told))
    story.notes.append(f"a fresh process went on behind {story.running}: {ended}")
    story.running = ""


def _one(
    arguments: list[str],
    environment: Mapping[str, str],
    reader: Reader,
    story: Story,
    output: IO[bytes],
    tell: Callable[[Story], None],
    stops: Sequence[int],
) -> str:
    """Run one process to its end and take in what it tells; return what ended it if it did not end by itself."""
    process = subprocess.Popen(
        arguments, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return _watch(process, story, reader, tell, stops)
    finally:
        _end(process)
        for line in reader.lines():
            story.take(line)


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


def _watch(
    process: subprocess.Popen[bytes],
    story: Story,
    reader: Reader,
    tell: Callable[[Story], None],
    stops: Sequence[int],
) -> str:
    deadline = Deadline(START_LIMIT_S)
    while process.poll() is None:
        if stops:
            return INTERRUPTED
        if lines := reader.lines():
            for line in lines:
                story.take(line)
            deadline = Deadline(story.limit_s if story.running else END_LIMIT_S if story.again else CLOSE_LIMIT_S)
        if not deadline.left():
            return "" if story.again else f"it said nothing for {deadline.limit_s:.0f} s and was killed"
        tell(story)
        time.sleep(POLL_S)
    for line in reader.lines():
        story.take(line)
    if story.refused or story.again or process.returncode in (0, 1):
        return ""
    if process.returncode < 0:
        return f"it was ended by {signal.Signals(-process.returncode).name}"
    return f"it exited with {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process of the child's group: ask, then force."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
