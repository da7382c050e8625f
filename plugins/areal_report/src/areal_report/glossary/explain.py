"""`areal explain METRIC`: what a number of a run is, what it should be like, and what to do.

Knows: names somebody may type, and how an entry looks in a terminal.
Does not know: what a number is (`entries`).
"""

from __future__ import annotations

import difflib
import re

from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal_core.contract.errors import ConfigError
from areal_report.glossary.entries import METRICS
from areal_report.glossary.metric import Metric

_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_COMMAND = re.compile(r"\\(?:mathrm\{(\w+)\}|([a-zA-Z]+)|(.))")
_WORDS = {"pm": "+-", "lvert": "|", "rvert": "|"}
_ENDING = re.compile(r"_(?:std|min|max)$")


def explain(metric: str | None = None) -> int:
    """Say what a number of a run is: meaning, formula, unit, what is healthy, what to do.

    Args:
        metric: A name of metrics.jsonl, with or without what stands before its slash; all of them if left out.
    """
    console = Console()
    if metric is None:
        _print_all(console)
        return 0
    for found in find(metric):
        _print_one(found, console)
    return 0


def find(word: str) -> list[Metric]:
    """Return the entries a name belongs to.

    Raises:
        ConfigError: no number is called so; names the near ones.
    """
    for fits in (_is, _ends_with, _matches):
        found = [metric for metric in METRICS if any(fits(name, word) for name in metric.all_names)]
        if found:
            return found
    if _ENDING.search(word):
        return find(_ENDING.sub("", word))
    known = [name for metric in METRICS for name in metric.all_names]
    near = difflib.get_close_matches(word, known, n=2) or difflib.get_close_matches(f"train/{word}", known, n=2)
    raise ConfigError(
        f"no number of a run is called {word!r}",
        why="areal explain lists those there are; what a workflow or an objective of yours adds is yours to explain",
        fix=f"did you mean {' or '.join(map(repr, near))}?" if near else "areal explain",
    )


def plain(markdown: str) -> str:
    """Return an entry's text as a terminal shows it: no links, no backquotes, formulas in letters.

    Example: plain("$-\\sum p \\log p$ of `a`") == "-sum p log p of a"
    """
    text = _LINK.sub(r"\1", markdown).replace("`", "").replace("$", "")
    text = _COMMAND.sub(lambda found: found[1] or _WORDS.get(found[2] or "", found[2] or " "), text)
    return " ".join(text.split())


def _is(name: str, word: str) -> bool:
    return name == word


def _ends_with(name: str, word: str) -> bool:
    return name.endswith(f"/{word}")


def _matches(name: str, word: str) -> bool:
    """Tell whether a word fits a name with a part that runs choose: `infer/<name>`, `eval_reward/NAME`."""
    parts = re.split(r"<\w+>|NAME", name)
    return len(parts) > 1 and re.fullmatch(".+".join(map(re.escape, parts)), word) is not None


def _print_all(console: Console) -> None:
    for section in dict.fromkeys(metric.section for metric in METRICS):
        console.print(f"\n[bold]{section}[/]")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(max_width=30)
        table.add_column(max_width=9)
        table.add_column(ratio=1)
        for metric in (one for one in METRICS if one.section == section):
            first = plain(metric.meaning).partition(". ")[0]
            names = "\n".join(f"  {name}" for name in metric.names if not name.startswith("_"))
            table.add_row(Text(names), Text(metric.unit), Text(first))
        console.print(table, highlight=False)


def _print_one(metric: Metric, console: Console) -> None:
    console.print(f"[bold]{', '.join(metric.all_names)}[/]", highlight=False)
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column()
    told = {
        "what": plain(metric.meaning),
        "unit": metric.unit,
        "from": plain(metric.source),
        "healthy": plain(metric.healthy),
        "if not": plain(metric.act),
    }
    for name, text in told.items():
        if text:
            rows.add_row(name, Text(text))
    console.print(rows, highlight=False)
