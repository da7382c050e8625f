"""Curves in plain text: a sparkline, and a plot of braille dots.

Knows: points and a number of characters.
Does not know: terminals, colours, or what the points mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]

_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille bits by row and column of a cell
_BRAILLE = 0x2800


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as at most `width` bars, oldest first; a longer series is averaged down."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    means = []
    for number in range(count):
        part = finite[len(finite) * number // count : len(finite) * (number + 1) // count]
        means.append(sum(part) / len(part))
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_BARS[min(7, int((mean - low) / span * 8))] for mean in means)


def draw_curve(
    points: Sequence[Point],
    *,
    marks: Sequence[Point] = (),
    title: str = "",
    x_label: str = "step",
    width: int = 72,
    height: int = 12,
) -> str:
    """Draw points as a connected curve with axes; `marks` are single values drawn over it.

    Returns:
        `height` + 2 lines (and one for the title) of at most `width` characters, joined by newlines;
        an explanation if there is nothing to draw.
    """
    shown = [point for point in (*points, *marks) if all(map(math.isfinite, point))]
    if not shown:
        return f"{title}: nothing to draw" if title else "nothing to draw"
    x_low, x_high = _range([x for x, _ in shown])
    y_low, y_high = _range([y for _, y in shown])
    labels = [f"{y_high:.3g}", f"{(y_low + y_high) / 2:.3g}", f"{y_low:.3g}"]
    margin = max(map(len, labels))
    columns, rows = max(4, width - margin - 2), max(2, height)

    def place(point: Point) -> tuple[int, int]:
        x = (point[0] - x_low) / (x_high - x_low) * (columns * 2 - 1)
        y = (y_high - point[1]) / (y_high - y_low) * (rows * 4 - 1)
        return round(x), round(y)

    cells = [[_BRAILLE] * columns for _ in range(rows)]
    dots = [place(point) for point in points if all(map(math.isfinite, point))]
    for start, stop in zip(dots, dots[1:] or dots, strict=False):
        for x, y in _line(start, stop):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    text = [["" if code == _BRAILLE else chr(code) for code in row] for row in cells]
    for mark in marks:
        if all(map(math.isfinite, mark)):
            x, y = place(mark)
            text[y // 4][x // 2] = "◆"
    at = {0: labels[0], rows // 2: labels[1], rows - 1: labels[2]}
    lines = [title] if title else []
    for number, row in enumerate(text):
        lines.append(f"{at.get(number, ''):>{margin}} │" + "".join(cell or " " for cell in row).rstrip())
    left, right = f"{x_low:g}", f"{x_label} {x_high:g}"
    lines.append(" " * margin + " └" + "─" * columns)
    lines.append(" " * (margin + 2) + left + right.rjust(columns - len(left)))
    return "\n".join(line[:width] for line in lines)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _line(start: tuple[int, int], stop: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(stop[0] - start[0]), abs(stop[1] - start[1]), 1)
    return [
        (round(start[0] + (stop[0] - start[0]) * k / steps), round(start[1] + (stop[1] - start[1]) * k / steps))
        for k in range(steps + 1)
    ]
