"""The page of a run: `report.html`, one file that needs nothing else. What was not measured is not on it.

Knows: what a reader wants, in which order: why it failed, what it was warned of, the reward, completions, the rest.
Does not know: how the run made its records, or how charts are drawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from areal_core.contract.errors import StorageError
from areal_report.charts import to_png, to_svg
from areal_report.completions import Completions, completions_html
from areal_report.failure import cause_html, cause_of
from areal_report.history import History
from areal_report.journal import Happened, Journal
from areal_report.metrics_shown import Shown, learning_charts, reward_chart, speed_charts, staleness_charts
from areal_report.report_style import STYLE
from areal_report.text import duration, html, number
from areal_report.traces import HOW_TO_OPEN

NO_CHARTS = "charts need vl-convert: pip install vl-convert-python"


@frozen(kw_only=True)
class Page:
    """What a page is made of."""

    title: str
    summary: Mapping[str, Any]  # Any: as `summarize` gives it
    history: History = field(factory=History)
    journal: Journal = field(factory=Journal)
    completions: Sequence[Completions] = ()
    resumable: str | None = None
    """The folder, if it holds a checkpoint."""
    traces: Sequence[str] = ()
    """Paths in the folder."""
    plan: str = ""
    """Plain text, as are the next two."""
    versions: Mapping[str, str] = field(factory=dict)
    config: str = ""
    written: float | None = None
    """When, in seconds since 1970; a page of a run that goes on says so."""


def write_page(path: Path, page: Page) -> None:
    """Write the page, whole or not at all, for its owner alone: it shows prompts and answers.

    Raises:
        StorageError: it cannot be written.
    """
    unnamed = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(render_page(page))
        unnamed.rename(path)
    except OSError as error:
        unnamed.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written", why=str(error), fix="free space, or --out FILE") from error


def render_page(page: Page) -> str:
    """Return the page as a string."""
    status = str(page.summary.get("status"))
    cause = cause_of(status, page.journal, resumable=page.resumable)
    summary = {name: str(value) for name, value in page.summary.items() if value is not None}
    last = {name: str(value) for name, value in (page.history.last[-1] if page.history.last else {}).items()}
    body = [
        _header(page, status),
        cause_html(cause, page.journal, page.history) if cause else "",
        _warnings(page.journal),
        _tiles(page),
        *_charts(page),
        _failures(page.journal),
        "<h2>The run</h2>" if page.plan or page.traces or page.versions or summary or page.config else "",
        _text("Changed by resumes", "\n".join(page.journal.changes)),
        _text("Plan", page.plan),
        _text(f"Traces: {HOW_TO_OPEN}", "\n".join(page.traces)),
        _table("Versions", page.versions),
        _table("Summary", summary),
        _table("Every number of the last step", last),
        _text("Configuration", page.config),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html(page.title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def write_picture(path: Path, history: History, journal: Journal, tell: Callable[..., None] | None = None) -> bool:
    """Draw reward and evaluation into a png; tell whether it was written.

    Without vl-convert there is no picture: an event says so, and the run is none the worse.
    """
    chart = reward_chart(history, journal)
    if not chart.shown:
        return False
    try:
        path.write_bytes(to_png(chart))
    except (ImportError, ValueError) as error:
        if tell is not None:
            tell("no_picture", path=str(path), why=repr(error), fix="pip install vl-convert-python")
        return False
    return True


def _header(page: Page, status: str) -> str:
    backends = [page.summary.get("train_backend"), page.summary.get("infer_backend")]
    about = [" · ".join(f"{name} {verb}" for name, verb in zip(backends, ("trains", "generates"), strict=True) if name)]
    if page.journal.began is not None:
        about.append(f"started {_date(page.journal.began)}")
    if page.journal.num_starts > 1:
        about.append(f"resumed {page.journal.num_starts - 1} times" if page.journal.num_starts > 2 else "resumed once")
    if status == "running" and page.written is not None:
        about.append(f"as of {_date(page.written)}; refresh with: areal report")
    return (
        f"<header><h1>{html(page.title)}</h1><span class='status {html(status)}'>{html(status)}</span>"
        f"<p class='more'>{html(' · '.join(part for part in about if part))}</p></header>"
    )


def _charts(page: Page) -> list[str]:
    """Return the reward, completions, and the charts there are numbers for, under the question they answer."""
    history, journal = page.history, page.journal
    reward = Shown(title=history.headline.capitalize(), chart=reward_chart(history, journal))
    groups = {
        "Learning": learning_charts(history),
        "Speed": speed_charts(history),
        "Freshness": staleness_charts(history),
    }
    parts, read = list[str](), [completions_html(each) for each in page.completions]
    try:
        if reward.chart.shown:
            parts.append(_reward(reward))
        parts += read
        for title, charts in groups.items():
            if drawn := "".join(_chart(shown) for shown in charts if shown.chart.shown):
                parts.append(f"<h2>{title}</h2><div class='pair'>{drawn}</div>")
    except (ImportError, ValueError) as error:
        return [f"<section><p class='more'>{NO_CHARTS} ({html(error)})</p></section>", *read]
    return parts


def _reward(shown: Shown) -> str:
    """Return the one wide chart; a phone shows a narrow one, whose text can be read there."""
    wide, narrow = to_svg(shown.chart, shown.title, width=960, height=250), to_svg(shown.chart, shown.title)
    both = f"<div class='wide'>{wide}</div><div class='narrow'>{narrow}</div>"
    return f"<section><h3>{html(shown.title)}</h3>{both}</section>"


def _chart(shown: Shown) -> str:
    more = f"<p class='more'>{html(shown.more)}</p>" if shown.more else ""
    return f"<section><h3>{html(shown.title)}</h3>{more}{to_svg(shown.chart, shown.title)}</section>"


def _tiles(page: Page) -> str:
    """Return the numbers a reader asks for first, those that were measured."""
    summary, planned = page.summary, page.journal.started.get("steps")
    steps = summary.get("steps") or 0
    idle = [number(summary.get(f"idle_share_{part}"), ".0%") for part in ("train", "infer")]
    seen, allowed = summary.get("max_staleness_seen"), summary.get("max_staleness_configured")
    lost = summary.get("prompts_lost")
    tiles = {
        **{name: _from_to(summary.get(f"{name}_first"), summary.get(f"{name}_last")) for name in ("reward", "loss")},
        "evaluation": _from_to(summary.get("eval_first"), summary.get("eval_last")),
        "steps": f"{steps} of {planned}" if planned else str(steps) if steps else None,
        "training took": duration(summary["seconds"]) if steps else None,
        "staleness, most seen of allowed": f"{seen} of {allowed}" if steps and allowed is not None else None,
        "idle, training / inference": " / ".join(share or "?" for share in idle) if any(idle) else None,
        "prompts, lost / trained twice": f"{lost} / {summary.get('prompts_twice')}" if lost is not None else None,
        "episodes failed": str(summary.get("episodes_failed") or ""),
        "restarts": str(summary.get("restarts") or ""),
    }
    cells = "".join(
        f"<div><small>{html(name)}</small><b>{html(value)}</b></div>" for name, value in tiles.items() if value
    )
    return f"<div class='tiles'>{cells}</div>" if steps else ""


def _from_to(first: object, last: object) -> str | None:
    shown = [text for value in (first, last) if (text := number(value, _short)) is not None]
    return " → ".join(dict.fromkeys(shown)) or None


def _warnings(journal: Journal) -> str:
    if not journal.warnings:
        return ""
    rows = "".join(
        f"<dt>{html(name.replace('_', ' '))}{_times(told)}{', over' if told.over else ''}</dt>"
        f"<dd><pre>{html(told.text)}</pre></dd>"
        for name, told in journal.warnings.items()
    )
    return f"<section class='warned'><h2>Warnings</h2><dl>{rows}</dl></section>"


def _failures(journal: Journal) -> str:
    """Return what failed and did not end the run, alike failures as one."""
    if not journal.failures:
        return ""
    start = journal.began or 0.0
    rows = "".join(
        f"<tr><td>{duration(each.last - start)}</td><td>{html(each.kind)}{_times(each)}</td>"
        f"<td><pre>{html(each.text)}</pre></td></tr>"
        for each in journal.failures.values()
    )
    more = f"<p class='more'>and {journal.others} of other kinds</p>" if journal.others else ""
    return f"<section><h3>What went wrong on the way</h3><table>{rows}</table>{more}</section>"


def _times(happened: Happened) -> str:
    return f", {happened.count} times" if happened.count > 1 else ""


def _text(title: str, text: str) -> str:
    if not text:
        return ""
    return f"<section><details><summary>{html(title)}</summary><pre>{html(text)}</pre></details></section>"


def _table(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr><th>{html(name)}</th><td>{html(value)}</td></tr>" for name, value in rows.items())
    return f"<section><details><summary>{html(title)}</summary><table>{cells}</table></details></section>"


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.4g}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
