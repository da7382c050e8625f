"""What a person sees while checks are made: one line a check, and below them what runs now.

Knows: the terminal.
Does not know: where the story comes from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from areal_conformance.outcome import Outcome
from areal_conformance.report.parts import title
from areal_conformance.run.journal import Story
from areal_conformance.run.record import Row
from areal_conformance.run.verdict import in_words

STYLES: Mapping[Outcome, str] = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.ERROR: "bold magenta",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.KNOWN_FAIL: "yellow",
    Outcome.UNEXPECTED_PASS: "bold red",
    Outcome.SKIP: "dim",
    Outcome.NOT_RUN: "yellow",
}


class Live:
    """Shows a story as it grows. On anything that is no terminal: plain lines, no spinner."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._opened = False
        self._since: dict[str, float] = {}
        """Running check -> when that was seen."""
        self._status: Status | None = None

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._status = self._console.status("preparing")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, story: Story) -> None:
        """Show what is new."""
        if story.record is not None and not self._opened:
            self._opened = True
            origin = f" ({story.record.subject.origin})" if story.record.subject.origin else ""
            self._print(f"{title(story.record)}{origin}: {in_words(len(story.planned))}")
        for row in story.rows[self._shown :]:
            self._row(row, len(story.planned))
        self._now(story)

    def _row(self, row: Row, planned: int) -> None:
        self._shown += 1
        style = STYLES[row.outcome]
        what = f"[{style}]{row.outcome:<12}[/] {escape(row.id)}"
        self._print(f"{self._shown:>4}/{planned} {what} [dim]{row.seconds:.1f} s[/]", markup=True)

    def _now(self, story: Story) -> None:
        now = time.monotonic()
        running = story.running.split(", ") if story.running else []
        self._since = {check: self._since.get(check, now) for check in running}
        if self._status is None:
            return
        if running:
            oldest = min(running, key=self._since.__getitem__)
            more = f", {len(running) - 1} more" if len(running) > 1 else ""
            self._status.update(f"{self._shown}/{len(story.planned)} {oldest} {now - self._since[oldest]:.0f} s{more}")
        else:
            self._status.update("closing" if self._shown and self._shown == len(story.planned) else "preparing")

    def _print(self, line: str, *, markup: bool = False) -> None:
        self._console.print(line, markup=markup, highlight=False, soft_wrap=True)
