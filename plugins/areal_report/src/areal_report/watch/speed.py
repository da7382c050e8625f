"""Tokens a second, over the same window as on the terminal and in the report.

Knows: which counts of a step's record are of tokens.
Does not know: how a window is chosen (`rates`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from areal_report.rates import Record, rate, window

_KEPT = 1000
"""Steps kept for windows; at 5 s a window they suffice down to 5 ms a step."""
_COUNTS = {"trained": "tokens_trained", "generated": "tokens_generated"}
_READ = ("step", "wall_s", "infer_wall_s", *_COUNTS.values())


class Speed:
    """Call `measure` with the record of each step, in order."""

    def __init__(self) -> None:
        self._recent: deque[Record] = deque(maxlen=_KEPT)

    def measure(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Return `tokens_per_s/trained` and `/generated`; the first step after a resume has none. Any: a record."""
        if "step" not in record:
            return {}
        self._recent.append({name: record[name] for name in _READ if name in record})
        records = list(self._recent)
        rates = {name: rate(window(records, -1, count), records[-1], count) for name, count in _COUNTS.items()}
        return {f"tokens_per_s/{name}": value for name, value in rates.items() if value is not None}
