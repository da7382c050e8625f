"""A person sees what a run does from its first second on, in a terminal and in a file."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from areal_core.testing.clock import StepClock
from areal_report.progress import Progress
from areal_report.run_report import REPORT

Records = list[dict[str, Any]]


def screen(width: int, *, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, height=40, force_terminal=terminal, _environ={"TERM": "xterm"}), stream


def lines_of(stream: io.StringIO) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\r") for line in stream.getvalue().splitlines()]


def plain(total: int, clock: StepClock, **options: Any) -> tuple[Progress, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, width=40)
    return Progress(total, console=console, clock=clock, now=clock.now, **options), stream


@pytest.mark.parametrize("width", [1, 5, 20, 33, 60, 99, 100, 200])
def test_progress_fits_any_terminal(width: int, records: Records) -> None:
    """However narrow, it draws without an error, and no line is wider than a terminal of 20 columns or more."""
    console, stream = screen(width, terminal=True)

    with Progress(100, console=console, folder=Path("/a/folder/with/a/rather/long/name"), title="t" * 50) as progress:
        progress.waiting("workers to start: actor fsdp:d8, critic fsdp:d8, rollout vllm:d4t2")
        for record in records[:30]:
            progress.step(record)
        progress.note("a note")

    assert max(len(line) for line in lines_of(stream) if "note" not in line) <= max(20, width)


def test_progress_says_what_is_promised(records: Records) -> None:
    """Reward, evaluation, staleness, both token rates, queues, idle shares and the time left."""
    console, stream = screen(120, terminal=True)
    with Progress(100, console=console, clock=StepClock()) as progress:
        for record in records[:40]:
            progress.step(record)

    text = stream.getvalue()
    for part in ("reward", "eval", "at 40", "1.40 (max 2)", "4500 tok/s", "3750 tok/s", "in flight", "buffered"):
        assert part in text, part
    assert all(
        part in text for part in ("idle train", "50%", "idle infer", "25%", "left", "48.0 s", "▁", "█", "40/100")
    )


def test_the_panel_is_there_before_anything_has_happened() -> None:
    """With the name, the folder, what is waited for and for how long, before a first step and without one."""
    clock = StepClock()
    console, stream = screen(100, terminal=True)
    with Progress(100, console=console, clock=clock, title="spell", folder=Path("/runs/spell")) as progress:
        first = "\n".join(lines_of(stream))
        progress.waiting("workers to start: actor fsdp:d1")
        asyncio.run(clock.advance(75.0))
        progress.tick()
        later = "\n".join(lines_of(stream))

    assert all(part in first for part in ("spell", "0/100", "elapsed", "/runs/spell", "waiting for the run to start"))
    assert "waiting for workers to start: actor fsdp:d1, 1 min 15 s" in later
    assert "nan" not in later and "None" not in later


def test_the_panel_counts_down_between_steps(records: Records) -> None:
    """Time left shrinks and time waited grows although no step ends."""
    clock = StepClock()
    console, stream = screen(100, terminal=True)
    with Progress(100, console=console, clock=clock) as progress:
        for record in records[:40]:
            progress.step(record)
        progress.waiting("rollouts")
        asyncio.run(clock.advance(8.0))
        progress.tick()
        text = "\n".join(lines_of(stream))

    assert "40.0 s" in text and "waiting for rollouts, 8.0 s" in text


def test_without_a_terminal_there_is_one_plain_line_every_few_steps(records: Records) -> None:
    """No escape codes; the start, the first, every tenth and the last step, notes as they come, all with the time."""
    progress, stream = plain(25, StepClock(), plain_every=10, title="spell", folder=Path("/runs/spell"))
    with progress:
        progress.waiting("rollouts")
        progress.note("version 0: evaluation reward 0.020")
        for record in records[:25]:
            progress.waiting("the trainer")
            progress.step(record)

    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    assert [line.split("  ")[1] for line in lines] == [
        "spell: 25 steps, in /runs/spell",
        "waiting for rollouts",
        "version 0: evaluation reward 0.020",
        "waiting for the trainer",
        "step 1/25",
        "step 10/25",
        "step 20/25",
        "step 25/25",
    ]
    assert "\x1b" not in stream.getvalue()


def test_without_a_terminal_a_minute_never_passes_in_silence(records: Records) -> None:
    """A step that takes five minutes is told of five times, with what it waits for; quick steps are not told more."""
    clock = StepClock()
    progress, stream = plain(1000, clock, plain_every=1000)

    async def hang() -> None:
        for _ in range(5 * 60):
            await clock.advance(1.0)
            progress.tick()

    with progress:
        progress.step(records[0])
        progress.waiting("the trainer")
        asyncio.run(hang())
        asyncio.run(clock.advance(59.0))
        progress.step(records[1])
        asyncio.run(clock.advance(1.0))
        progress.step(records[2])

    told = [line.split("  ")[1] for line in stream.getvalue().splitlines()[2:]]
    assert told == ["step 1/1000"] * 5 + ["step 3/1000"]
    assert "waiting" not in stream.getvalue().splitlines()[-1]
    assert "waiting for the trainer, 5 min 00 s" in stream.getvalue()


def test_a_run_that_hangs_is_still_drawn() -> None:
    """A thread ticks, so that a blocked event loop does not stop the clock on the screen; it ends with the view."""
    import threading

    drawn = threading.Event()
    progress, _ = plain(3, StepClock())
    progress.tick = drawn.set  # type: ignore[method-assign]

    with progress:
        assert drawn.wait(30.0)

    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_progress_takes_a_record_that_says_nothing() -> None:
    """Whatever is missing is left out."""
    progress, _ = plain(3, StepClock())
    with progress:
        progress.step({"step": 1})

        assert progress.plain_line() == "step 1/3  elapsed 0.0 s  waiting for the run to start, 0.0 s"


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_of_a_run_gives_orders_to_the_terminal(terminal: bool) -> None:
    """Escapes in an error, a name or an engine are spelt out; markup is text."""
    console, stream = screen(100, terminal=terminal)
    with Progress(3, console=console, title="\x1b]0;owned\x07[red]t", folder=Path("/a\x1b[2J")) as progress:
        progress.note("reward: \x1b[2J\x1b]0;owned\x07 [bold]b")
        progress.waiting("\x1b[31mworkers")

    assert "\x1b]0;" not in stream.getvalue() and "\x1b[2J" not in stream.getvalue() and "\x07" not in stream.getvalue()
    assert "\\x1b[2J" in stream.getvalue() and "[bold]b" in stream.getvalue() and "[red]t" in stream.getvalue()


def test_the_view_of_a_run_that_is_quiet_shows_nothing(records: Records, capsys: pytest.CaptureFixture[str]) -> None:
    """`--quiet` hands over a console that prints nothing."""
    view: Any = REPORT.view(3, title="t", folder=Path("/runs/t"), console=Console(quiet=True))
    with view:
        view.note("a note")
        view.step(records[0])

    assert capsys.readouterr() == ("", "")


def test_a_traced_step_is_told_with_where_its_traces_are(tmp_path: Path) -> None:
    """When the step is shown, also where its own line is not due; other steps say nothing."""
    (tmp_path / "profile/step-2").mkdir(parents=True)
    for name in ("actor-rank0.json.gz", "rollout-rank0.json.gz", ".actor-rank1.json.gz.part"):
        (tmp_path / "profile/step-2" / name).touch()
    progress, stream = plain(9, StepClock(), folder=tmp_path)

    for step in (1, 2, 3):
        progress.step({"step": step})

    traced = [line for line in lines_of(stream) if "traced" in line]
    assert len(traced) == 1
    assert f"step 2 was traced (actor-rank0, rollout-rank0): {tmp_path}/profile/step-2; " in traced[0]
    assert "ui.perfetto.dev" in traced[0]
