"""What a person sees while a run goes on, from its first second to its last.

Knows: the last steps' records, what the run waits for, and how wide the terminal is.
Does not know: who makes the records. Without a terminal it writes plain lines with the time of day, every few steps and
once a minute at least.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal_core.contract.clock import Clock, SystemClock
from areal_report.curve import sparkline
from areal_report.history import headline_of
from areal_report.rates import START, Record, idle_share, rate, window
from areal_report.text import duration, number, printable
from areal_report.traces import HOW_TO_OPEN, traces_of

TICK_S = 0.5
QUIET_S = 60.0
"""Seconds without a line after which one is due where there is no terminal."""
_KEPT = 1000
"""Records kept for windows; at 5 s a window they suffice down to 5 ms a step."""


class Progress:
    """Show a run live. Use as a context manager; `step`, `note` and `waiting` also work outside of one.

    Args:
        total: steps of the whole run.
        folder: the run's.
        console: where to; None makes one for standard error, so that standard output stays data.
        plain_every: without a terminal, every how many steps a line is written.
        clock: tells how long the run takes.
        now: the time of day, for plain lines.
    """

    def __init__(
        self,
        total: int,
        *,
        title: str = "areal",
        folder: Path | None = None,
        console: Console | None = None,
        plain_every: int = 10,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._total, self._title, self._folder, self._root = total, printable(title), _near(folder), folder
        self._console = console or Console(stderr=True)
        self._plain_every = max(1, plain_every)
        self._clock, self._now = clock or SystemClock(), now
        self._began = self._stepped = self._waits_since = self._told = self._clock.now()
        self._waits_for: str | None = "the run to start"
        self._rewards: list[float] = []
        self._recent: deque[Record] = deque(maxlen=_KEPT)
        self._evaluation: tuple[int, float] | None = None
        self._live: Live | None = None
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._keep_ticking, name="progress", daemon=True)
        self._lock = threading.RLock()  # the ticker draws while the run tells

    def __enter__(self) -> Progress:
        """Take over the bottom of the terminal, if there is one."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self.render(), console=self._console, auto_refresh=False, transient=False)
            self._live.start(refresh=True)
        else:
            where = f", in {self._folder}" if self._folder else ""
            self._line(f"{self._title}: {self._total} steps{where}")
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last picture where it is."""
        self.close()

    def close(self) -> None:
        """Give the terminal back. Idempotent."""
        self._ended.set()
        if self._ticker.ident is not None:
            self._ticker.join()
        with self._lock:
            self._waits_for = None
            if self._live is not None:
                self._live.update(self.render(), refresh=True)
                self._live.stop()
                self._live = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Show one finished step. Any: as in `metrics.jsonl`; whatever is missing is left out."""
        with self._lock:
            first = not self._recent
            self._recent.append(record)
            self._stepped = self._clock.now()
            headline = headline_of(record)
            if isinstance(record.get(headline), int | float):
                self._rewards.append(float(record[headline]))
            if isinstance(record.get(f"eval_{headline}"), int | float):
                self._evaluation = (int(record["step"]), float(record[f"eval_{headline}"]))
            step = int(record["step"])
            if self._live is not None:
                self._live.update(self.render(), refresh=True)
            elif first or step % self._plain_every == 0 or step == self._total or self._is_due():
                self._line(self.plain_line(waiting=False))
            if self._root is not None and (traces := traces_of(self._root, step)):
                names = ", ".join(Path(trace).name.removesuffix(".json.gz") for trace in traces)
                self.note(f"step {step} was traced ({names}): {self._folder}/profile/step-{step}; {HOW_TO_OPEN}")

    def note(self, text: str) -> None:
        """Show one line that is not a step, above the live part."""
        with self._lock:
            if self._live is not None:
                self._console.print(Text(printable(text)), soft_wrap=True)
            else:
                self._line(printable(text))

    def waiting(self, what: str) -> None:
        """Take what the run waits for from now on; drawn with the next tick."""
        with self._lock:
            self._waits_for, self._waits_since = printable(what), self._clock.now()
            if self._live is None and not self._recent and self._ticker.ident is not None:
                self._line(f"waiting for {self._waits_for}")

    def tick(self) -> None:
        """Draw what time alone changes. Called twice a second by a thread, so that a run that hangs is seen to."""
        with self._lock:
            if self._live is not None:
                self._live.update(self.render(), refresh=True)
            elif self._is_due():
                self._line(self.plain_line())

    def plain_line(self, *, waiting: bool = True) -> str:
        """Return the last step in one line, and what is waited for now."""
        step = int(self._recent[-1]["step"]) if self._recent else 0
        facts = [f"{name} {value}" for name, value in self._facts() if waiting or name != "waiting for"]
        return "  ".join([f"step {step}/{self._total}", *facts])

    def render(self) -> RenderableType:
        """Return the picture for the console's width, which may be as narrow as it likes."""
        width = max(20, self._console.width)
        step = int(self._recent[-1].get("step", 0)) if self._recent else 0
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=max(1, self._total), completed=step), f"{step}/{self._total}")
        columns = 1 if width < 60 else 2 if width < 100 else 3
        facts = Table.grid(expand=True, padding=(0, 2))
        for _ in range(columns):
            facts.add_column(style="dim", no_wrap=True)
            facts.add_column(ratio=1, no_wrap=True)
        cells = [fact for fact in self._facts() if fact[0] != "waiting for"]
        for first in range(0, len(cells), columns):
            row = [cell for fact in cells[first : first + columns] for cell in fact]
            facts.add_row(*row, *[""] * (2 * columns - len(row)))
        parts: list[RenderableType] = [bar, facts]
        if self._rewards:
            parts.append(Text(sparkline(self._rewards, width - 6), style="green", no_wrap=True))
        waits = self._waits()
        parts += [Text(f"waiting for {waits}", style="yellow", no_wrap=True, overflow="ellipsis")] if waits else []
        parts += [Text(self._folder, style="dim", no_wrap=True, overflow="ellipsis")] if self._folder else []
        return Panel(Group(*parts), title=Text(self._title), title_align="left", padding=(0, 1))

    def _facts(self) -> list[tuple[str, str]]:
        """Return name and value of everything known, most important first."""
        last = self._recent[-1] if self._recent else START
        facts: list[tuple[str, str | None]] = [
            (headline_of(last), number(last.get(headline_of(last)), ".3f")),
            ("eval", f"{self._evaluation[1]:.3f} at {self._evaluation[0]}" if self._evaluation else None),
            ("staleness", _staleness(last)),
            ("generated", _per_second(self._rate("tokens_generated"))),
            ("trained", _per_second(self._rate("tokens_trained"))),
            ("in flight", number(last.get("in_flight"), ".0f")),
            ("buffered", number(last.get("buffered"), ".0f")),
            ("idle train", number(self._idle("train_busy_s"), ".0%")),
            ("idle infer", number(self._idle("infer_busy_s"), ".0%")),
            ("failed", number(last.get("failed") or None, ".0f")),
            ("step time", number(last.get("seconds"), duration)),
            ("elapsed", duration(self._clock.now() - self._began)),
            ("left", self._time_left()),
            ("waiting for", self._waits()),
        ]
        return [(name, value) for name, value in facts if value is not None]

    def _rate(self, count: str) -> float | None:
        records = list(self._recent)
        return rate(window(records, -1, count), records[-1], count) if records else None

    def _idle(self, busy: str) -> float | None:
        records = list(self._recent)
        return idle_share(window(records, -1, busy), records[-1], busy) if records else None

    def _waits(self) -> str | None:
        if self._waits_for is None:
            return None
        return f"{self._waits_for}, {duration(self._clock.now() - self._waits_since)}"

    def _time_left(self) -> str | None:
        """Return the time the missing steps take if each takes what those of the window took, evaluations included."""
        if not self._recent:
            return None
        records = list(self._recent)
        first, last = window(records, -1, "wall_s"), records[-1]
        seconds, steps = last.get("wall_s", 0.0) - first.get("wall_s", 0.0), last["step"] - first["step"]
        if seconds <= 0 or steps <= 0:
            return None
        left = max(0, self._total - int(last["step"])) * seconds / steps
        return duration(left - min(left, self._clock.now() - self._stepped))

    def _is_due(self) -> bool:
        return self._clock.now() - self._told >= QUIET_S

    def _line(self, text: str) -> None:
        """Write one plain line with the time of day."""
        self._told = self._clock.now()
        stamp = time.strftime("%H:%M:%S", time.localtime(self._now()))
        self._console.print(f"{stamp}  {text}", markup=False, highlight=False, soft_wrap=True)

    def _keep_ticking(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()


def _near(folder: Path | None) -> str:
    """Return a folder as somebody in this one would type it."""
    if folder is None:
        return ""
    return printable(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def _staleness(record: Record) -> str | None:
    if "staleness_mean" not in record:
        return None
    return f"{record['staleness_mean']:.2f} (max {record.get('staleness_max', 0)})"


def _per_second(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value / 1000:.1f}k tok/s" if value >= 10_000 else f"{value:.0f} tok/s"
