"""Whoever holds the event loop of a run is named while it does."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

from areal_core.observe.jsonl import read_lines
from areal_local.loop_watch import LATE_S, LoopWatch, watch_run

USER_FILE = """
def judge(asked, released):
    asked.set()
    released.wait()
"""


class Told(list[tuple[str, dict[str, Any]]]):
    """What was told."""

    def __call__(self, kind: str, **fields: Any) -> None:
        self.append((kind, fields))


def _user_module(folder: Path) -> Any:
    path = folder / "mine.py"
    path.write_text(USER_FILE)
    spec = importlib.util.spec_from_file_location("areal_user_mine", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("late", "kinds"), [(LATE_S, ["event_loop_held", "event_loop_free"]), (LATE_S - 0.1, [])])
def test_a_line_that_holds_the_loop_is_named_once_and_so_is_its_end(
    tmp_path: Path, late: float, kinds: list[str]
) -> None:
    """The innermost line of the user's own file, not the library's it called; a moment is nobody's business."""
    told, mine, seconds = Told(), _user_module(tmp_path), [0.0]
    asked, released = threading.Event(), threading.Event()

    async def body() -> None:
        watch = LoopWatch(told, now=lambda: seconds[0])

        def look() -> None:
            asked.wait()
            watch.look()
            seconds[0] = late
            watch.look()
            watch.look()
            released.set()

        looking = threading.Thread(target=look)
        looking.start()
        mine.judge(asked, released)
        looking.join()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(body())

    assert [kind for kind, _ in told] == kinds
    if kinds:
        assert told[0][1]["where"] == f"{tmp_path / 'mine.py'}:4 in judge: released.wait()"
        assert "in body" in told[0][1]["stack"]


def test_a_loop_that_answers_is_not_told(tmp_path: Path) -> None:
    """Every sign of life starts the time anew."""
    told, seconds = Told(), [0.0]

    async def body() -> None:
        watch = LoopWatch(told, now=lambda: seconds[0])
        for _ in range(10):
            watch.look()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seconds[0] += LATE_S

    asyncio.run(body())

    assert told == []


def test_a_watched_run_has_it_in_its_events_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread ends with the run."""

    async def body() -> None:
        watch = watch_run(tmp_path)
        watch._tell("event_loop_held", seconds=6.0, where="mine.py:4 in judge: released.wait()", stack="")
        watch.close()
        await asyncio.to_thread(watch._thread.join)

    asyncio.run(body())

    (event,) = read_lines(tmp_path / "events.jsonl")
    assert (event["kind"], event["where"]) == ("event_loop_held", "mine.py:4 in judge: released.wait()")
    assert "held for 6.0 s by mine.py:4 in judge" in capsys.readouterr().err
