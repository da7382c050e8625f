"""A submitted job until its end: its log as it grows, its exit code, Ctrl-C.

Knows: the log file, when to ask for the state, what a second Ctrl-C does.
Does not know: Slurm's commands (`site`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from attrs import define, field

from areal_core.contract.errors import ResourceError
from areal_ray.slurm.site import JobState

INTERRUPTED = 130
_LOOK_S, _ASK_S, _REGRET_S, _SILENCE_S = 0.5, 5.0, 5.0, 600.0


@define(kw_only=True)
class Following:
    """One job, followed in a terminal."""

    job: int
    log: Path
    state: Callable[[int], JobState]
    """Asks for the job's state. May raise ResourceError."""
    cancel: Callable[[int], None]
    out: TextIO = field(factory=lambda: sys.stdout)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _read: int = 0

    def until_end(self) -> int:
        """Print the log until the job ends, through requeues, and return its exit code; 130 if Ctrl-C left it.

        Raises:
            ResourceError: Slurm says nothing about the job for ten minutes.
        """
        try:
            return self._follow()
        except KeyboardInterrupt:
            self._say(
                f"\njob {self.job} goes on; press Ctrl-C again within {_REGRET_S:g} s to cancel it. Its log: {self.log}"
            )
        try:
            self.sleep(_REGRET_S)
        except KeyboardInterrupt:
            self.cancel(self.job)
            self._say(f"job {self.job} is cancelled; it saves its state, as far as Slurm lets it")
            return self._follow()
        return INTERRUPTED

    def _follow(self) -> int:
        heard, asked, told = self.now(), float("-inf"), ""
        while True:
            if self.now() - asked >= _ASK_S:
                asked = self.now()
                try:
                    state, heard = self.state(self.job), self.now()
                except ResourceError:
                    if self.now() - heard > _SILENCE_S:
                        raise
                else:
                    if state.ended:
                        self._print_news()
                        self._say(f"job {self.job} {state.name}, exit code {state.exit_code}")
                        return state.exit_code
                    if not state.started and state.name != told:
                        self._say(f"job {self.job} {state.name}")
                    told = state.name
            self._print_news()
            self.sleep(_LOOK_S)

    def _print_news(self) -> None:
        try:
            with self.log.open("rb") as file:
                file.seek(self._read)
                news = file.read()
        except FileNotFoundError:
            return  # it has not begun
        self._read += len(news)
        self.out.write(news.decode(errors="replace"))
        self.out.flush()

    def _say(self, text: str) -> None:
        self.out.write(f"{text}\n")
        self.out.flush()
