"""Charts are static pictures of what there is."""

from __future__ import annotations

import math
import re

import pytest

from areal_report.charts import Bars, Line, legend, to_png, to_svg


def test_a_chart_is_svg_that_needs_nothing_and_obeys_the_pages_colours() -> None:
    """No address, no size of its own, no script; colours are the page's variables, so that it can be dark."""
    drawn = to_svg(Line(series={"a": [(1, 0.5), (2, 0.7)], "b": [(1, 0.1), (2, 0.2)]}), "Reward")

    assert "<script" not in drawn and "http" not in drawn and "url(" not in drawn
    assert re.search(r'<svg role="img" aria-label="Reward" viewBox="0 0 \d+ \d+">', drawn)
    assert "var(--c1)" in drawn and "var(--c2)" in drawn
    assert not re.search(r'(stroke|fill)="#(?!000)', drawn)


def test_names_in_a_chart_are_text() -> None:
    """A reward part may have any name."""
    chart = Line(series={"<script>a": [(1, 0.5), (2, 1)], "</svg><b>": [(1, 1), (2, 1)]}, x_label="<i>x")

    drawn = to_svg(chart, '"><script>')
    bars = to_svg(Bars(counts={"<b>x": 1.0}, x_label="<i>"), "b")

    assert not re.search(r"<script|<b>|<i>|</svg>.", drawn.replace("</i>", ""))
    assert "<b>" not in bars and "<i>" not in bars


@pytest.mark.parametrize(
    "values", [[], [math.nan], [math.inf, -math.inf], [0.0], [1e308, -1e308], [1.0, math.nan, 2.0]]
)
def test_any_numbers_make_a_chart_or_none(values: list[float]) -> None:
    """What cannot be drawn is left out; what is drawn has no NaN in it."""
    chart = Line(series={"a": list(enumerate(values))}, bands={"a": [(0, math.nan, 1.0)]})

    assert bool(chart.shown) == any(abs(value) < 1e100 for value in values)
    if chart.shown:
        assert not re.search(r"NaN|Infinity", to_svg(chart, "a"))


def test_a_series_of_one_point_is_seen() -> None:
    """A line through one point would be invisible."""
    assert "mark-symbol" in to_svg(Line(series={"a": [(1, 0.5)]}), "a")
    assert "mark-symbol" not in to_svg(Line(series={"a": [(1, 0.5), (2, 0.5)]}), "a")


def test_only_several_series_need_a_legend() -> None:
    """One is named by the title; one of several that were not all measured is not."""
    assert legend(Line(series={"a": [(1, 0.5)]})) == ""
    assert legend(Line(series={"a": [(1, 0.5)], "empty": []})).count("<span>") == 1
    assert legend(Line(series={"a": [(1, 0.5)], "b": [(1, 1.0)]})).count("<span>") == 2


def test_bars_show_shares() -> None:
    """Of all; nothing counted is nothing to show."""
    drawn = to_svg(Bars(counts={"0": 3.0, "1": 1.0}, x_label="versions behind"), "Staleness")

    assert "75.0%" in drawn and "25.0%" in drawn and "versions behind" in drawn
    assert Bars(counts={"0": 0.0}, x_label="x").shown == {}


def test_a_picture_has_real_colours() -> None:
    """There is no style sheet beside a png."""
    assert to_png(Line(series={"a": [(1, 0.5), (2, 0.7)], "b": [(1, 0.1)]})).startswith(b"\x89PNG")
