"""A run as it goes on, below a cell of a notebook.

Knows: HTML that one cell's output is replaced with.
Does not know: terminals (`areal_report.progress`), or who makes the records.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

PAUSE_S = 0.2
"""Between two pictures: a browser is not asked to draw every step of a quick run."""
_KEPT_NOTES = 8
_WIDTH, _HEIGHT = 480, 90


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook. Imports nothing."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


class NotebookView:
    """Satisfies `areal_core.plugins.extensions.RunView`, as a context manager."""

    def __init__(self, steps: int, *, title: str) -> None:
        """Show nothing yet."""
        self._steps, self._title = steps, title
        self._values: list[float] = []
        self._notes: list[str] = []
        self._record: Mapping[str, Any] = {}
        self._waiting = "the start"
        self._shown_at = 0.0
        self._handle: Any = None  # IPython's

    def __enter__(self) -> NotebookView:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML(self._page()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting = ""
        self._show()

    def step(self, record: Mapping[str, Any]) -> None:
        """Take a finished step. Any: as in `metrics.jsonl`."""
        self._record = record
        self._values.append(float(record[headline_of(record)]))
        self._show_at_times()

    def note(self, text: str) -> None:
        """Take a line that is not a step."""
        self._notes.append(text)
        self._show()

    def waiting(self, what: str) -> None:
        """Take what the run waits for."""
        self._waiting = what
        self._show_at_times()

    def _show_at_times(self) -> None:
        if time.monotonic() - self._shown_at >= PAUSE_S:
            self._show()

    def _show(self) -> None:
        if self._handle is not None:
            self._handle.update(self._html(self._page()))
            self._shown_at = time.monotonic()

    def _page(self) -> str:
        step = int(self._record.get("step", 0))
        facts = [f"step {step} of {self._steps}"]
        facts += [f"{headline_of(self._record)} {self._values[-1]:.3f}"] if self._record else []
        facts += [f"waiting for {self._waiting}"] if self._waiting else []
        lines = [html.escape(line) for line in self._notes[-_KEPT_NOTES:]]
        return (
            f"<div><b>{html.escape(self._title)}</b> <progress value='{step}' max='{self._steps}'></progress> "
            f"{html.escape(' · '.join(facts))}{curve_svg(self._values)}<small>{'<br>'.join(lines)}</small></div>"
        )


def headline_of(record: Mapping[str, Any]) -> str:
    """Return the number of a step that a run is judged by: its reward, or its loss where nothing is rewarded."""
    return "reward" if "reward" in record else "loss"


def curve_svg(values: Sequence[float]) -> str:
    """Return a line through the values, oldest first; nothing of less than two."""
    if len(values) < 2:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    across, up = _WIDTH / (len(values) - 1), (_HEIGHT - 10) / span
    points = " ".join(f"{n * across:.1f},{_HEIGHT - 5 - (value - low) * up:.1f}" for n, value in enumerate(values))
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' style='display:block' role='img' aria-label='by step'>"
        f"<polyline points='{points}' fill='none' stroke='#3b6fb6' stroke-width='1.5'/></svg>"
    )
