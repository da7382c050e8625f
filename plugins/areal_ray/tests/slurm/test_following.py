"""Following a job: its log, its requeues, its end, and Ctrl-C. Time is stepped."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from areal_core.contract.errors import ResourceError
from areal_ray.slurm.following import Following
from areal_ray.slurm.site import JobState


class Script:
    """A job whose state is the next of a list each time it is asked; sleeping moves the clock, or is interrupted."""

    def __init__(self, log: Path, states: Sequence[JobState | None], interrupts: Sequence[int] = ()) -> None:
        self.states, self.interrupts, self.log = list(states), list(interrupts), log
        self.now_s, self.naps = 0.0, 0
        self.cancelled: list[int] = []
        self.told = io.StringIO()

    def state(self, job: int) -> JobState:
        """Write a line to the log, and return the next state; None is a controller that does not answer."""
        with self.log.open("a") as file:
            file.write(f"line {len(self.states)}\n")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise ResourceError("scontrol failed")
        return state

    def sleep(self, seconds: float) -> None:
        """Move the clock, or be interrupted."""
        self.now_s += seconds
        self.naps += 1
        if self.naps in self.interrupts:
            raise KeyboardInterrupt

    def follow(self) -> int:
        """Follow the job 7 to its end."""
        following = Following(
            job=7,
            log=self.log,
            state=self.state,
            cancel=self.cancelled.append,
            out=self.told,
            now=lambda: self.now_s,
            sleep=self.sleep,
        )
        return following.until_end()


def at(name: str, code: int = 0) -> JobState:
    """Return a state."""
    return JobState(name=name, exit_code=code)


def test_the_whole_log_is_shown_and_the_exit_code_is_the_jobs(tmp_path: Path) -> None:
    """Also what was written last, and through a requeue; each wait in the queue is told once."""
    script = Script(tmp_path / "log", [at("PENDING"), at("RUNNING"), at("PENDING"), at("PENDING"), at("FAILED", 3)])

    assert script.follow() == 3

    told = script.told.getvalue()
    assert [line for line in told.splitlines() if line.startswith("line")] == [f"line {n}" for n in (5, 4, 3, 2, 1)]
    assert told.count("job 7 PENDING") == 2
    assert told.endswith("job 7 FAILED, exit code 3\n")


def test_one_interrupt_leaves_the_job_and_says_so(tmp_path: Path) -> None:
    """The exit code is that of a command that was interrupted."""
    script = Script(tmp_path / "log", [at("RUNNING")], interrupts=[3])

    assert script.follow() == 130
    assert "job 7 goes on" in script.told.getvalue()
    assert script.cancelled == []


def test_a_second_interrupt_cancels_the_job_and_waits_for_its_end(tmp_path: Path) -> None:
    """What it saves at its end is still shown."""
    script = Script(tmp_path / "log", [at("RUNNING"), at("COMPLETING"), at("CANCELLED", 1)], interrupts=[2, 3])

    assert script.follow() == 1
    assert script.cancelled == [7]
    assert script.told.getvalue().endswith("job 7 CANCELLED, exit code 1\n")


def test_a_controller_that_is_away_for_a_while_ends_nothing(tmp_path: Path) -> None:
    """Ten minutes of silence are an error, less is not."""
    script = Script(tmp_path / "log", [at("RUNNING"), *[None] * 100, at("COMPLETED")])

    assert script.follow() == 0

    with pytest.raises(ResourceError):
        Script(tmp_path / "log", [at("RUNNING"), None]).follow()
