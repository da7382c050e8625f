"""One line every few steps: what shows a run where no report is installed.

Knows: a step's number, reward and staleness.
Does not know: terminals; `areal-report` brings a live picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console

EVERY = 10
"""Steps between two lines."""


class PlainView:
    """Satisfies `areal_core.plugins.extensions.RunView`, as a context manager."""

    def __init__(self, steps: int, console: Console) -> None:
        self._steps = steps
        self._console = console

    def __enter__(self) -> PlainView:
        """Nothing has to be prepared."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing has to be put back."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Print every tenth step, and the last. Any: as in `metrics.jsonl`."""
        step = int(record["step"])
        if step % EVERY and step != self._steps:
            return
        facts = [f"{name} {record[name]:.3f}" for name in ("reward", "staleness_mean") if name in record]
        self.note("  ".join([f"step {step}/{self._steps}", *facts]))

    def note(self, text: str) -> None:
        """Print one line that is not a step."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
