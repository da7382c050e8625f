"""A reward of 1 for the answer itself, and 0 for anything else.

Knows: text. Does not know: what an answer means (`gym` and `mathematics` do).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import is_finished, required


@frozen(kw_only=True)
class ExactMatchConfig:
    """Options of `exact_match`."""

    column: str = "answer"
    """The column of the row that holds the answer."""
    strip: bool = True
    """Leave white space around the two aside."""
    case: bool = True
    """Tell capitals from small letters."""
    finished: bool = True
    """Give 0 to completions cut off by the token budget."""


@frozen
class ExactMatch:
    """Compares the completion with a column of the row."""

    config: ExactMatchConfig = ExactMatchConfig()

    def columns(self) -> Sequence[str]:
        """Return the column with the answer."""
        return (self.config.column,)

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> float:
        """Return 1.0 or 0.0. Called in a reward process, once per completion."""
        if self.config.finished and not is_finished(stop_reason):
            return 0.0
        return float(self._plain(completion) == self._plain(str(required(row, self.config.column))))

    def _plain(self, text: str) -> str:
        text = text.strip() if self.config.strip else text
        return text if self.config.case else text.casefold()
