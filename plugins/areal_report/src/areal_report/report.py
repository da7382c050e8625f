"""The page of a run: `report.html`, one file that needs nothing else.

Knows: which charts and tables a reader wants, in which order.
Does not know: how the run made its records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from areal_core.contract.errors import StorageError
from areal_report.charts import bar_chart, line_chart
from areal_report.curve import Point
from areal_report.report_style import STYLE
from areal_report.summary import (
    Record,
    evaluation_points,
    idle_share,
    rate,
    reward_points,
    staleness_counts,
)

_MAX_FAILURES = 50


def write_report(
    path: Path,
    *,
    title: str,
    summary: Mapping[str, Any],
    records: Sequence[Record],
    events: Sequence[Record] = (),
    plan: str = "",
    versions: Mapping[str, str] | None = None,
    config: str = "",
) -> None:
    """Write the page. Any: as `summarize` gives it; `plan` and `config` are plain text.

    Raises:
        StorageError: it cannot be written.
    """
    page = render_report(
        title=title,
        summary=summary,
        records=records,
        events=events,
        plan=plan,
        versions=versions or {},
        config=config,
    )
    unnamed = path.with_name(path.name + ".part")
    try:
        unnamed.write_text(page, encoding="utf-8")
        unnamed.rename(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written", why=str(error)) from error


def render_report(
    *,
    title: str,
    summary: Mapping[str, Any],
    records: Sequence[Record],
    events: Sequence[Record],
    plan: str,
    versions: Mapping[str, str],
    config: str,
) -> str:
    """Return the page as a string. Any: as in `write_report`."""
    body = [
        f"<header><h1>{escape(title)}</h1><p class='status {escape(str(summary.get('status')))}'>"
        f"{escape(str(summary.get('status')))}</p></header>",
        _tiles(summary),
        *_charts(records, events),
        _failures(events),
        _text("Plan", plan),
        _table("Versions", versions),
        _table("Summary", {name: str(value) for name, value in summary.items()}),
        _text("Configuration", config),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def write_picture(
    path: Path, records: Sequence[Record], events: Sequence[Record], tell: Callable[..., None] | None = None
) -> bool:
    """Draw reward and evaluation into a png; tell whether it was written.

    Without matplotlib there is no picture: an event says so, and the run is none the worse.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        if tell is not None:
            tell("no_picture", path=str(path), error=repr(error), fix="pip install matplotlib")
        return False
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points, evaluations = reward_points(records), evaluation_points(records, events)
    axes.plot([x for x, _ in points], [y for _, y in points], color="#93b8f0", linewidth=1, label="reward, each step")
    smooth = _smoothed(points)
    axes.plot([x for x, _ in smooth], [y for _, y in smooth], color="#1f5fd0", linewidth=2, label="reward, smoothed")
    if evaluations:
        axes.plot(
            [x for x, _ in evaluations],
            [y for _, y in evaluations],
            color="#d9730d",
            marker="o",
            linewidth=1,
            label="evaluation",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("reward")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path)
    return True


def _charts(records: Sequence[Record], events: Sequence[Record]) -> list[str]:
    rewards, evaluations = reward_points(records), evaluation_points(records, events)
    curves: dict[str, Sequence[Point]] = {"reward, each step": rewards, "reward, smoothed": _smoothed(rewards)}
    if evaluations:
        curves["evaluation"] = evaluations
    counts = {str(lag): float(count) for lag, count in staleness_counts(records).items()}
    return [
        _section("Reward", line_chart(curves, marks=("evaluation",)), wide=True),
        "<div class='pair'>",
        _section("Staleness of the episodes trained on", bar_chart(counts, x_label="versions behind")),
        _section(
            "Staleness over time",
            line_chart({"mean": _of(records, "staleness_mean"), "largest": _of(records, "staleness_max")}, zero=True),
        ),
        _section(
            "Idle share",
            line_chart(
                {
                    "training": _between(records, lambda a, b: idle_share(a, b, "train_busy_s")),
                    "inference": _between(records, lambda a, b: idle_share(a, b, "infer_busy_s")),
                },
                percent=True,
            ),
        ),
        _section(
            "Tokens per second",
            line_chart(
                {
                    "generated": _between(records, lambda a, b: rate(a, b, "tokens_generated")),
                    "trained": _between(records, lambda a, b: rate(a, b, "tokens_trained")),
                },
                zero=True,
            ),
        ),
        _section(
            "Seconds of a step",
            line_chart(
                {
                    "waiting for rollouts": _of(records, "wait_s"),
                    "training": _of(records, "train_s"),
                    "weight update": _of(records, "sync_s"),
                },
                zero=True,
            ),
        ),
        _section(
            "Episodes waiting",
            line_chart({"in flight": _of(records, "in_flight"), "buffered": _of(records, "buffered")}, zero=True),
        ),
        _section("Loss", line_chart({"loss": _of(records, "loss")})),
        _section("Gradient norm", line_chart({"gradient norm": _of(records, "grad_norm")}, zero=True)),
        "</div>",
    ]


def _tiles(summary: Mapping[str, Any]) -> str:
    tiles = [
        ("reward", f"{_shown(summary.get('reward_first'))} → {_shown(summary.get('reward_last'))}"),
        ("evaluation", f"{_shown(summary.get('eval_first'))} → {_shown(summary.get('eval_last'))}"),
        ("steps", f"{summary.get('steps', 0)} in {summary.get('seconds', 0.0):.0f} s"),
        (
            "staleness",
            f"{_shown(summary.get('max_staleness_seen'))} of {_shown(summary.get('max_staleness_configured'))} allowed",
        ),
        (
            "idle, training / inference",
            f"{_share(summary.get('idle_share_train'))} / {_share(summary.get('idle_share_infer'))}",
        ),
        ("backends", f"{_shown(summary.get('train_backend'))} · {_shown(summary.get('infer_backend'))}"),
    ]
    cells = "".join(f"<div><small>{escape(name)}</small><b>{escape(value)}</b></div>" for name, value in tiles if value)
    return f"<div class='tiles'>{cells}</div>"


def _failures(events: Sequence[Record]) -> str:
    failed = [event for event in events if "error" in event]
    if not failed:
        return ""
    start = events[0].get("time", 0.0)
    rows = "".join(
        f"<tr><td>{event.get('time', start) - start:.0f} s</td><td>{escape(str(event.get('kind')))}</td>"
        f"<td><pre>{escape(str(event['error']))}</pre></td></tr>"
        for event in failed[:_MAX_FAILURES]
    )
    more = f"<p>and {len(failed) - _MAX_FAILURES} more</p>" if len(failed) > _MAX_FAILURES else ""
    return f"<section><h2>What went wrong</h2><table>{rows}</table>{more}</section>"


def _section(title: str, content: str, *, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{content}</section>"


def _text(title: str, text: str) -> str:
    if not text:
        return ""
    return f"<section><details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details></section>"


def _table(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<section><details><summary>{escape(title)}</summary><table>{cells}</table></details></section>"


def _of(records: Sequence[Record], name: str) -> list[Point]:
    return [(r["step"], r[name]) for r in records if isinstance(r.get(name), int | float)]


def _between(records: Sequence[Record], value: Callable[[Record, Record], float | None]) -> list[Point]:
    """Return (step, value) of each pair of neighbours; a resume between them, where counts start anew, is left out."""
    pairs = ((later["step"], value(earlier, later)) for earlier, later in pairwise(records))
    return [(step, found) for step, found in pairs if found is not None and found >= 0]


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """Return the mean over a window of a tenth of the run, centred where it can be."""
    half = max(1, len(points) // 20)
    smooth = []
    for number, (x, _) in enumerate(points):
        window = [y for _, y in points[max(0, number - half) : number + half + 1]]
        smooth.append((x, sum(window) / len(window)))
    return smooth


def _share(value: object) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "-"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
