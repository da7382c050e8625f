"""Small charts as inline SVG: no script, no network, colours from the page's style sheet.

Knows: series of points.
Does not know: what they mean. `class="s0"`, `s1`, ... are coloured by `report`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from areal_report.curve import Point

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 34
_MAX_POINTS = 600
"""Longer series are averaged down to this; the file stays small however long the run."""


def line_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str = "step",
    percent: bool = False,
    marks: Sequence[str] = (),
    zero: bool = False,
) -> str:
    """Return an SVG of one or more series; those named in `marks` are drawn as points joined by a thin line.

    Args:
        percent: values are shares, the axis runs from 0 to 1 and is labelled in percent.
        zero: the axis starts at 0.
    """
    shown = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    everything = [point for points in shown.values() for point in points]
    if not everything:
        return '<p class="none">not measured</p>'
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    x_ticks = _ticks(min(xs), max(xs), 6)
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if percent else _ticks(min(0.0, min(ys)) if zero else min(ys), max(ys), 7)
    x_of = _scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    y_of = _scale(min(y_ticks[0], *ys), max(y_ticks[-1], *ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(x_ticks, y_ticks, x_of, y_of, x_label, percent)]
    for number, (name, points) in enumerate(shown.items()):
        marked = name in marks
        places = [(x_of(x), y_of(y)) for x, y in _thinned(points)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line s{number}{" thin" if marked else ""}" points="{line}"/>')
        if marked or len(points) == 1:
            for (x, y), (step, value) in zip(places, _thinned(points), strict=True):
                parts.append(
                    f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                    f"<title>{escape(name)}, {escape(x_label)} {step:g}: {value:.4g}</title></circle>"
                )
    return _legend(list(shown)) + _svg(parts)


def bar_chart(counts: Mapping[str, float], *, x_label: str) -> str:
    """Return an SVG with one labelled bar per entry; the label is the share of the total."""
    total = sum(counts.values())
    if not total:
        return '<p class="none">not measured</p>'
    y_of = _scale(0.0, max(counts.values()), _HEIGHT - _BOTTOM, _TOP + 16)
    slot = (_WIDTH - _LEFT - _RIGHT) / len(counts)
    width = min(72.0, slot * 0.7)
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_of(0)}" y2="{y_of(0)}"/>']
    for number, (name, count) in enumerate(counts.items()):
        middle, top = _LEFT + slot * (number + 0.5), y_of(count)
        parts.append(
            f'<rect class="bar s0" x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{y_of(0) - top:.1f}" rx="2"><title>{escape(name)}: {count:g}</title></rect>'
            f'<text class="value" x="{middle:.1f}" y="{top - 5:.1f}" text-anchor="middle">{count / total:.1%}</text>'
            f'<text x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    return _svg(parts)


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    keys = "".join(f'<span><i class="s{number}"></i>{escape(name)}</span>' for number, name in enumerate(names))
    return f'<div class="legend">{keys}</div>'


def _axes(
    x_ticks: Sequence[float], y_ticks: Sequence[float], x_of: _Scale, y_of: _Scale, x_label: str, percent: bool
) -> str:
    parts = []
    for tick in y_ticks:
        y = y_of(tick)
        text = f"{tick:.0%}" if percent else _short(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for tick in x_ticks:
        parts.append(f'<text x="{x_of(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    return "".join(parts)


class _Scale:
    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self._low, self._span = (low, high - low) if high > low else (low - 0.5, 1.0)
        self._start, self._length = start, stop - start

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self._low) / self._span * self._length, 2)


_scale = _Scale


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values inside [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)] or [low]


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:.4g}"


def _thinned(points: Sequence[Point]) -> list[Point]:
    if len(points) <= _MAX_POINTS:
        return list(points)
    thin = []
    for number in range(_MAX_POINTS):
        part = points[len(points) * number // _MAX_POINTS : len(points) * (number + 1) // _MAX_POINTS]
        thin.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return thin
