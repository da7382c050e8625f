"""What a run writes about itself survives crashes, full disks and broken loggers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import StorageError
from areal_core.observe.events import MAX_FIELD, EventLog
from areal_core.observe.jsonl import JsonLines, read_lines
from areal_core.observe.metrics import MetricsLogger, MetricsStream, flat

Values = st.dictionaries(st.text(min_size=1, max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3)


def test_an_event_holds_no_secret(tmp_path: Path) -> None:
    """Errors quote URLs and headers; people send their journals along."""
    log = EventLog(tmp_path / "events.jsonl")
    error = "POST https://me:hunter2xx@judge/v1 with Authorization: Bearer hunter2xx ended with 500"
    log.write("group_failed", error=error, api_key="hunter2xx", parts=[{"password": "hunter2xx"}])
    log.close()

    assert "hunter2xx" not in (tmp_path / "events.jsonl").read_text()


class Memory:
    """A logger that keeps what it gets, and raises where it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.started: list[int] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        self._maybe_fail("start")
        self.started.append(first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._maybe_fail("log")
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        self._maybe_fail("close")
        self.closed += 1

    def _maybe_fail(self, where: str) -> None:
        if self.fails_at == where:
            raise ConnectionError("no network")


def test_an_event_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    """A process killed right after an event leaves the event, whole."""
    path = tmp_path / "events.jsonl"
    program = (
        "import os, signal; from pathlib import Path; from areal_core.observe.events import EventLog\n"
        f"EventLog(Path({str(path)!r})).write('started', pid=1); os.kill(os.getpid(), signal.SIGKILL)"
    )

    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)

    assert done.returncode == -9
    assert [event["kind"] for event in read_lines(path)] == ["started"]


@given(content=st.binary(max_size=40).map(lambda found: found.replace(b"x", b"\n")) | st.text("a\n").map(str.encode))
def test_a_journal_is_cut_after_its_last_whole_line_whatever_its_blocks(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """The end is found from behind, with torn tails that are shorter and longer than what is read at a time."""
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    path.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("areal_core.observe.jsonl._BLOCK", 3)
        JsonLines(path).close()

    assert path.read_bytes() == content[: content.rfind(b"\n") + 1]


def test_going_on_with_a_long_journal_reads_its_end_alone(tmp_path: Path) -> None:
    """However long the run was, a resume holds a block of its journal in memory."""
    path = tmp_path / "events.jsonl"
    path.write_bytes((b'{"kind":"row"}' + b"\n") * 1_000_000 + b"torn")

    tracemalloc.start()
    JsonLines(path).close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert path.stat().st_size == 15_000_000 and peak < 1_000_000


@given(records=st.lists(Values, min_size=1, max_size=5), cut=st.integers(1, 200))
def test_a_torn_last_line_is_ignored_and_written_over(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, float]], cut: int
) -> None:
    """Wherever a crash tears the file, every whole line is read, and what is written next is read too."""
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    log = EventLog(path, now=lambda: 1.0)
    for record in records:
        log.write("row", values=record)
    log.close()
    whole = path.read_bytes()
    torn = whole[: max(0, len(whole) - cut)]
    path.write_bytes(torn)

    num_whole = torn.count(b"\n")
    read = list(read_lines(path))
    again = EventLog(path, now=lambda: 2.0)
    again.write("next")
    again.close()

    assert [event["values"] for event in read] == records[:num_whole]
    assert [event["kind"] for event in read_lines(path)] == ["row"] * num_whole + ["next"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB; only root can make one."""
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path]).returncode:
        pytest.skip("no disk of its own can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return filler


def test_lines_wait_for_room_on_a_full_disk(disk: Path) -> None:
    """Not one is lost or torn, and the run does not hear of a moment."""
    lines = JsonLines(disk / "events.jsonl", now=lambda: 5.0)
    lines.write({"number": 0})
    filler = _fill(disk)
    for number in range(1, 2000):
        lines.write({"number": number, "text": "x"})
    filler.unlink()
    lines.write({"number": 2000})
    lines.close()

    assert [record["number"] for record in read_lines(disk / "events.jsonl")] == list(range(2001))


@pytest.mark.parametrize("room", [False, True])
def test_what_waits_when_a_file_is_closed_is_written_if_there_is_room(disk: Path, room: bool) -> None:
    """A run that ends on a full disk ends all the same."""
    lines = JsonLines(disk / "events.jsonl", now=lambda: 5.0)
    filler = _fill(disk)
    for number in range(1000):
        lines.write({"number": number})
    kept = len(list(read_lines(disk / "events.jsonl")))
    if room:
        filler.unlink()
    lines.close()

    assert kept < 1000
    assert len(list(read_lines(disk / "events.jsonl"))) == (1000 if room else kept)


def test_a_disk_that_stays_full_is_an_error_after_a_minute(disk: Path) -> None:
    """A minute without room counts from the first line that found none, not from the start."""
    clock = iter(range(0, 10_000, 30))
    lines = JsonLines(disk / "events.jsonl", now=lambda: float(next(clock)))
    _fill(disk)
    written = 0

    with pytest.raises(StorageError, match=r"events.jsonl cannot be written(.|\n)*No space left on device"):
        for written in range(100_000):
            lines.write({"number": written, "text": "x" * 600})
    lines.close()

    assert written >= 2


def test_a_removed_folder_is_noticed_at_the_next_line(tmp_path: Path) -> None:
    """Not at the end of the night."""
    folder = tmp_path / "run"
    folder.mkdir()
    log = EventLog(folder / "events.jsonl")
    log.write("first")
    shutil.rmtree(folder)

    with pytest.raises(StorageError, match=r"events.jsonl cannot be written(.|\n)*somebody removed it"):
        log.write("second")
    log.close()


def test_a_line_damaged_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """Only the last line can be torn by a crash; anything else is damage, and named."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"a"}\n{"ki\n{"kind":"c"}\n')

    with pytest.raises(StorageError, match="line 2"):
        list(read_lines(path))


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    """However long the journal is: 20 MB take well under one."""
    path = tmp_path / "events.jsonl"
    path.write_bytes((b'{"kind":"a","text":"' + b"x" * 1000 + b'"}\n') * 20_000)
    tracemalloc.start()

    count = sum(1 for _ in read_lines(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 20_000
    assert peak < 500_000


def test_an_event_does_not_grow_with_a_log(tmp_path: Path) -> None:
    """Long text keeps both ends and loses its middle."""
    log = EventLog(tmp_path / "events.jsonl")

    log.write("failed", error="a" * 50_000 + "the end")
    log.close()

    (event,) = read_lines(tmp_path / "events.jsonl")
    assert len(event["error"]) < MAX_FIELD + 100
    assert event["error"].endswith("the end")


def test_what_json_cannot_hold_is_still_written(tmp_path: Path) -> None:
    """NaN becomes null and a path becomes text: the file stays json for every reader."""
    log = EventLog(tmp_path / "events.jsonl", now=lambda: 5.0)

    log.write("odd", loss=float("nan"), nested={"inf": [float("inf"), 1]}, path=tmp_path)
    log.close()

    line = (tmp_path / "events.jsonl").read_text()
    expected = {"time": 5.0, "kind": "odd", "loss": None, "nested": {"inf": [None, 1]}, "path": str(tmp_path)}
    assert json.loads(line, parse_constant=pytest.fail) == expected


def test_a_full_disk_is_a_storage_error() -> None:
    """The device that is always full says so in our words, a minute later."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    program = (
        "from pathlib import Path; from areal_core.observe import jsonl\n"
        "import os; lines = jsonl.JsonLines.__new__(jsonl.JsonLines)\n"
        "lines.path, lines._file = Path('/dev/full'), os.open('/dev/full', os.O_WRONLY)\n"
        "lines._waiting, lines._full_s, lines._now = b'', 0.0, iter([0.0, 60.0]).__next__\n"
        "lines.write({'a': 1})\n"
        "try: lines.write({'a': 2})\n"
        "except jsonl.StorageError as error: assert 'space' in error.why.lower(); print('refused')\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "refused", done.stderr


def test_a_disk_that_fills_up_within_a_line_leaves_no_torn_line(tmp_path: Path) -> None:
    """What did not fit is taken back and waits, so that every line can be read once there is room again."""
    log = EventLog(tmp_path / "events.jsonl")
    log.write("whole")
    whole = log_size(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 9, limits[1]))
    try:
        log.write("torn")
        read = [event["kind"] for event in read_lines(tmp_path / "events.jsonl")]
        size = log_size(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write("later")
    log.close()

    assert read == ["whole"] and size == whole
    assert [event["kind"] for event in read_lines(tmp_path / "events.jsonl")] == ["whole", "torn", "later"]


def log_size(folder: Path) -> int:
    """Return the bytes of the journal."""
    return (folder / "events.jsonl").stat().st_size


def test_metrics_reach_file_and_loggers(tmp_path: Path) -> None:
    """The file gets the record as it is, loggers its finite numbers under flat names."""
    logger = Memory()
    stream = MetricsStream(tmp_path / "metrics.jsonl", loggers={"memory": logger}, now=lambda: 7.0)
    record = {"step": 1, "loss": 0.5, "bad": float("inf"), "stepped": True, "staleness_histogram": {"0": 3}}

    stream.start("run", tmp_path, {})
    stream.write(record)
    stream.close()
    stream.close()

    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"time": 7.0, **record, "bad": None}]
    assert logger.rows == [(1, {"step": 1.0, "loss": 0.5, "stepped": 1.0, "staleness_histogram/0": 3.0})]
    assert (logger.started, logger.closed) == ([0], 1)
    assert isinstance(logger, MetricsLogger)
    assert flat({"text": "x", "none": None}) == {}


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_logger_that_raises_is_disabled_and_the_run_goes_on(tmp_path: Path, where: str) -> None:
    """It is written down once, asked no more, and the other logger and the file miss nothing."""
    broken, sound = Memory(where), Memory()
    events = EventLog(tmp_path / "events.jsonl")
    stream = MetricsStream(tmp_path / "m.jsonl", loggers={"broken": broken, "sound": sound}, events=events)

    stream.start("run", tmp_path, {})
    for step in (1, 2, 3):
        stream.write({"step": step})
    stream.close()
    events.close()

    assert [step for step, _ in sound.rows] == [1, 2, 3]
    assert [record["step"] for record in read_lines(tmp_path / "m.jsonl")] == [1, 2, 3]
    assert [(e["kind"], e["logger"], e["action"]) for e in read_lines(tmp_path / "events.jsonl")] == [
        ("logger_disabled", "broken", where)
    ]


@given(written=st.integers(0, 6), resume=st.integers(0, 6))
def test_a_resume_writes_the_record_its_checkpoint_holds_if_the_line_is_missing(
    tmp_path_factory: pytest.TempPathFactory, written: int, resume: int
) -> None:
    """Once, in its place, also to the loggers; a new run from another one's checkpoint has no such line."""
    folder = tmp_path_factory.mktemp("run")
    first = MetricsStream(folder / "metrics.jsonl")
    for step in range(1, written + 1):
        first.write({"step": step, "from": 1})
    first.close()
    logger = Memory()

    for name in ("metrics.jsonl", "new.jsonl"):
        second = MetricsStream(
            folder / name,
            loggers={"memory": logger} if name == "metrics.jsonl" else {},
            resume_step=resume,
            resume_record={"step": resume, "from": 2} if resume else {},
        )
        second.start("run", folder, {})
        second.close()

    kept = [(step, 1) for step in range(1, min(written, resume) + 1)]
    missing = [(resume, 2)] if resume > written else []
    assert [(line["step"], line["from"]) for line in read_lines(folder / "metrics.jsonl")] == kept + missing
    assert [step for step, _ in logger.rows] == [step for step, _ in missing]
    assert not list(read_lines(folder / "new.jsonl"))


@given(written=st.integers(0, 12), resume=st.integers(0, 12), cut=st.integers(0, 30))
def test_a_resume_never_duplicates_a_step(
    tmp_path_factory: pytest.TempPathFactory, written: int, resume: int, cut: int
) -> None:
    """Steps after the resume point are dropped and made again; also when the crash tore the file."""
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    first = MetricsStream(path)
    for step in range(1, written + 1):
        first.write({"step": step, "try": 1})
    first.close()
    path.write_bytes(path.read_bytes()[: max(0, len(path.read_bytes()) - cut)])
    whole = path.read_bytes().count(b"\n")

    second = MetricsStream(path, resume_step=resume)
    for step in range(resume + 1, resume + 4):
        second.write({"step": step, "try": 2})
    second.close()

    kept = [(step, 1) for step in range(1, min(whole, resume) + 1)]
    assert [(record["step"], record["try"]) for record in read_lines(path)] == kept + [
        (step, 2) for step in range(resume + 1, resume + 4)
    ]
