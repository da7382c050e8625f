"""What grows, what is left and what is trained twice is seen by those who judge a soak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import evolve

from areal_core.cli.main import INTERRUPTED

from . import runs, watch
from .judge import Episode, growing, growth, not_whole

_LAST = Episode(task=5, member=1, step=3, staleness=1)
_SHARED = Path("/dev/shm")
_HOLDS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def _process(mark: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Live, marked, until the block ends; it has printed a line."""
    environ = {**os.environ, watch.MARK: mark}
    with subprocess.Popen(
        [sys.executable, "-c", *words], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_what_grows_after_the_warm_up_is_told() -> None:
    """Not what grew before, and not what swings without growing."""
    steps = range(0, 5001, 50)
    samples = {
        "leak": {step: 300 + 0.003 * step for step in steps},
        "caches": {step: 300 + 0.1 * min(step, 900) for step in steps},
        "swings": {step: 300 + 20 * (step // 50 % 5) for step in steps},
    }

    told = growing({name: growth(found) for name, found in samples.items()}, bound=2.0, unit="MiB")

    assert [line.split()[0] for line in told] == ["leak"]
    assert "grows by 3 MiB in 1,000 steps, from 303 to 315; at most 2" in told[0]


def test_a_run_that_trained_each_prompt_once_has_no_fault() -> None:
    """Two prompts a step, two members each."""
    assert not_whole(_trained(), used=range(6), steps=3, prompts=2, group=2, max_staleness=2) == []


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ([_LAST, _LAST], "trained more than once"),
        ([], "never trained"),
        ([evolve(_LAST, staleness=3)], "staleness 3"),
        ([evolve(_LAST, step=2)], "not full"),
    ],
)
def test_what_a_run_trained_amiss_is_told(last: list[Episode], told: str) -> None:
    """Twice, never, too old, in another step."""
    trained = _trained() - Counter([_LAST]) + Counter(last)

    assert told in " ".join(not_whole(trained, used=range(6), steps=3, prompts=2, group=2, max_staleness=2))


def test_a_task_that_was_lost_long_ago_is_told() -> None:
    """Also where the run says itself that it is not done with it; a task may be left out near the end."""
    whole = {task: _group(task, step=task // 2 + 1) for task in range(16)}
    for lost, told in ((0, "tasks 0 are done with for nobody"), (14, "")):
        trained = Counter(episode for task in whole if task != lost for episode in whole[task]) + Counter(
            _group(16, step=lost // 2 + 1)
        )

        faults = not_whole(trained, used=[*(set(range(17)) - {lost})], steps=8, prompts=2, group=2, max_staleness=2)

        assert "; ".join(faults) == told


def _group(task: int, step: int) -> list[Episode]:
    return [Episode(task=task, member=member, step=step, staleness=1) for member in range(2)]


def test_a_process_that_is_left_is_seen() -> None:
    """By the mark that it inherited, and no other run's."""
    with _process("one", "print('lives', flush=True); import sys; sys.stdin.read()") as process:
        assert [each.pid for each in watch.marked("one")] == [process.pid]
        assert list(watch.marked("other")) == []
        held = watch.holding(next(watch.marked("one")))
        assert held.resident > held.memory > 0
        assert held.descriptors >= 3
    assert list(watch.marked("one")) == []


@pytest.mark.skipif(not _SHARED.is_dir(), reason="only Linux shows who maps a segment")
def test_a_segment_and_a_socket_that_are_left_are_seen(tmp_path: Path) -> None:
    """A segment that a process of the run mapped, until it is removed, and nobody else's."""
    machine = runs.Machine(scratch=tmp_path, model=tmp_path, sockets=tmp_path / "sockets")
    machine.sockets.mkdir()
    with tempfile.NamedTemporaryFile(dir=_SHARED) as segment, tempfile.NamedTemporaryFile(dir=_SHARED):
        segment.truncate(4096)
        with _process("one", _HOLDS, segment.name):
            machine.segments.look("one")
        assert machine.left() == [f"shared memory {Path(segment.name).name}"]
    (machine.sockets / "worker").touch()

    assert machine.left() == ["socket worker"]


@pytest.mark.parametrize(
    ("code", "output", "told"),
    [
        (INTERRUPTED, "stopped before its beginning; start the run again", []),
        (-signal.SIGINT, "interrupted", []),
        (1, "start the run again", ["it ends with 1"]),
        (INTERRUPTED, "Traceback (most recent call last)\nstart the run again", ["it prints a traceback"]),
        (INTERRUPTED, "", ["it does not say 'start the run again'"]),
    ],
)
def test_an_end_after_ctrl_c_that_is_not_clean_is_told(tmp_path: Path, code: int, output: str, told: list[str]) -> None:
    """Another exit code, a traceback, nothing said."""
    assert [fault.split(": ")[0] for fault in runs.interrupted_badly(code, output, tmp_path)] == told


def _trained() -> Counter[Episode]:
    return Counter(
        Episode(task=task, member=member, step=task // 2 + 1, staleness=1) for task in range(6) for member in range(2)
    )
