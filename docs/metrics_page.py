"""The tables of `docs/reference/metrics.md`, made from the glossary that `areal explain` reads.

    python docs/metrics_page.py          # writes them into the page

Knows: where the tables stand. Does not know: any number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from areal_report.glossary.entries import METRICS

PAGE = Path(__file__).parent / "reference/metrics.md"
_TABLE = re.compile(r"<!-- metrics: (?P<section>(?!end)[^>]+?) -->\n.*?<!-- metrics: end -->", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the entries of today."""
    return _TABLE.sub(lambda found: "\n".join(_table(found["section"])), text)


def _table(section: str) -> Iterator[str]:
    found = [metric for metric in METRICS if metric.section == section]
    columns = ("name", "unit", "what", *(("source",) if any(metric.source for metric in found) else ()))
    yield f"<!-- metrics: {section} -->"
    yield f"| {' | '.join(columns)} | healthy |"
    yield f"|{'---|' * len(columns)}---|"
    for metric in found:
        names = ", ".join(f"`{name}`" for name in metric.names)
        cells = [names, metric.unit, metric.meaning.replace("|", "\\|"), *([metric.source] if len(columns) > 3 else [])]
        yield f"| {' | '.join([*cells, metric.healthy])} |"
    yield "<!-- metrics: end -->"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
