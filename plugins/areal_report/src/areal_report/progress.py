"""What a person sees while a run goes on.

Knows: the last steps' records, and how wide the terminal is.
Does not know: who makes the records. Without a terminal it writes one plain line every few steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal_report.curve import sparkline
from areal_report.summary import Record, idle_share, rate

_WINDOW = 10
"""Steps that rates, shares and the time left are taken over."""


class Progress:
    """Show a run live. Use as a context manager; `step` and `note` also work outside of one.

    Args:
        total: steps of the whole run.
        console: where to; None makes one for standard error, so that standard output stays data.
        plain_every: without a terminal, every how many steps a line is written.
    """

    def __init__(
        self,
        total: int,
        *,
        title: str = "areal",
        console: Console | None = None,
        plain_every: int = 10,
    ) -> None:
        self._total = total
        self._title = title
        self._console = console or Console(stderr=True)
        self._plain_every = max(1, plain_every)
        self._rewards: list[float] = []
        self._recent: deque[Record] = deque(maxlen=_WINDOW + 1)
        self._evaluation: tuple[int, float] | None = None
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        """Take over the bottom of the terminal, if there is one."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self.render(), console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last picture where it is."""
        self.close()

    def close(self) -> None:
        """Give the terminal back. Idempotent."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Show one finished step. Any: as in `metrics.jsonl`; whatever is missing is left out."""
        self._recent.append(record)
        if isinstance(record.get("reward"), int | float):
            self._rewards.append(float(record["reward"]))
        if isinstance(record.get("eval_reward"), int | float):
            self._evaluation = (int(record["step"]), float(record["eval_reward"]))
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        elif int(record["step"]) % self._plain_every == 0 or int(record["step"]) == self._total:
            self._console.print(self.plain_line(), markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Show one line that is not a step, above the live part."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def plain_line(self) -> str:
        """Return the last step in one line."""
        record = self._recent[-1] if self._recent else {}
        parts = [f"step {record.get('step', 0)}/{self._total}"]
        parts += [f"{name} {value}" for name, value in self._facts()]
        return "  ".join(parts)

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
        cells = list(self._facts())
        for first in range(0, len(cells), columns):
            row = [cell for fact in cells[first : first + columns] for cell in fact]
            facts.add_row(*row, *[""] * (2 * columns - len(row)))
        curve = Text(sparkline(self._rewards, width - 6), style="green", no_wrap=True)
        return Panel(Group(bar, facts, curve), title=self._title, title_align="left", padding=(0, 1))

    def _facts(self) -> list[tuple[str, str]]:
        """Return name and value of everything known, most important first."""
        if not self._recent:
            return [("", "waiting for the first batch")]
        first, last = (self._recent[0] if len(self._recent) > 1 else {}), self._recent[-1]
        facts: list[tuple[str, str | None]] = [
            ("reward", _number(last.get("reward"), ".3f")),
            ("eval", f"{self._evaluation[1]:.3f} at {self._evaluation[0]}" if self._evaluation else None),
            ("staleness", _staleness(last)),
            ("generated", _per_second(rate(first, last, "tokens_generated"))),
            ("trained", _per_second(rate(first, last, "tokens_trained"))),
            ("in flight", _number(last.get("in_flight"), ".0f")),
            ("buffered", _number(last.get("buffered"), ".0f")),
            ("idle train", _number(idle_share(first, last, "train_busy_s"), ".0%")),
            ("idle infer", _number(idle_share(first, last, "infer_busy_s"), ".0%")),
            ("failed", _number(last.get("failed") or None, ".0f")),
            ("step time", _seconds(last.get("seconds"))),
            ("left", self._time_left()),
        ]
        return [(name, value) for name, value in facts if value is not None]

    def _time_left(self) -> str | None:
        seconds = [record["seconds"] for record in self._recent if "seconds" in record]
        if not seconds:
            return None
        left = max(0, self._total - int(self._recent[-1].get("step", 0)))
        return _seconds(left * sum(seconds) / len(seconds))


def _staleness(record: Record) -> str | None:
    if "staleness_mean" not in record:
        return None
    return f"{record['staleness_mean']:.2f} (max {record.get('staleness_max', 0)})"


def _number(value: object, form: str) -> str | None:
    return format(value, form) if isinstance(value, int | float) else None


def _per_second(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value / 1000:.1f}k tok/s" if value >= 10_000 else f"{value:.0f} tok/s"


def _seconds(value: object) -> str | None:
    if not isinstance(value, int | float):
        return None
    if value < 60:
        return f"{value:.1f} s"
    minutes, hours = divmod(int(value) // 60, 60)[1], int(value) // 3600
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {int(value) % 60:02d} s"
