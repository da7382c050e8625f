"""Charts as Vega-Lite specifications, drawn as static SVG or PNG by vl-convert: no script, no network, no browser.

Knows: series of points, and how a calm chart looks. Colours are variables of the page's style sheet.
Does not know: what the series mean. vl-convert is imported, and its engine started (half a second), with the first
drawing of a process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from attrs import field, frozen

from areal_report.curve import Point

Spec = dict[str, Any]  # Any: a Vega-Lite specification
COLOURS = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6")
LIGHT = {
    "--c0": "#b3cdf5",
    "--c1": "#2563c9",
    "--c2": "#d9730d",
    "--c3": "#2b8a57",
    "--c4": "#8a55c4",
    "--c5": "#b0416b",
    "--c6": "#6b7280",
    "--text": "#1c212b",
    "--dim": "#667085",
    "--edge": "#e6e8ee",
}
DARK = {
    "--c0": "#33517f",
    "--c1": "#7fadff",
    "--c2": "#ffab5e",
    "--c3": "#66c794",
    "--c4": "#bb92ee",
    "--c5": "#ee85ab",
    "--c6": "#9aa3b2",
    "--text": "#e6e9f0",
    "--dim": "#98a2b3",
    "--edge": "#2b313d",
}
_FONT = "system-ui, sans-serif"
_MOST = 1e100
"""The span of an axis must be a number too."""


@frozen(kw_only=True)
class Line:
    """Series over the steps.

    Example: Line(series={"mean": [(1, 0.5), (2, 0.4)]}, bands={"mean": [(1, 0.1, 0.9), (2, 0.1, 0.8)]}, percent=True)
    """

    series: Mapping[str, Sequence[Point]]
    bands: Mapping[str, Sequence[tuple[float, float, float]]] = field(factory=dict)
    """Least and largest value by step, drawn pale behind the series of that name."""
    percent: bool = False
    whole: bool = False
    """The axis shows 0 to 1 whatever the values are."""
    zero: bool = False
    """The axis begins at 0."""
    marks: frozenset[str] = frozenset()
    """Series of few points, drawn as such."""
    colours: tuple[str, ...] = COLOURS
    x_label: str = ""

    @property
    def shown(self) -> dict[str, list[Point]]:
        """Return the series with a point that can be drawn."""
        finite = {name: [p for p in points if _can_be_drawn(p)] for name, points in self.series.items()}
        return {name: points for name, points in finite.items() if points}

    def spec(self, width: int, height: int) -> Spec:
        """Return the chart's specification."""
        layers: list[Spec] = []
        for (name, points), colour in zip(self.shown.items(), self.colours, strict=False):
            if band := [value for value in self.bands.get(name, ()) if _can_be_drawn(value)]:
                layers.append(
                    {
                        "data": {"values": [{"x": x, "y": low, "y2": high} for x, low, high in band]},
                        "mark": {"type": "area", "color": f"var({colour})", "opacity": 0.14},
                        "encoding": self._encoding() | {"y2": {"field": "y2"}},
                    }
                )
            marked = name in self.marks or len(points) == 1
            mark: Spec = {"type": "line", "color": f"var({colour})", "strokeWidth": 1 if marked else 1.8}
            mark |= {"strokeJoin": "round", "strokeCap": "round"}
            mark |= {"point": {"filled": True, "size": 34, "color": f"var({colour})"}} if marked else {}
            values = [{"x": x, "y": y} for x, y in points]
            layers.append({"data": {"values": values}, "mark": mark, "encoding": self._encoding()})
        return _frame(width, height) | {"layer": layers}

    def _encoding(self) -> Spec:
        largest = max((abs(y) for points in self.shown.values() for _, y in points), default=0.0)
        large, whole = largest >= 1000, self.whole or (self.percent and largest == 0)
        y_axis = {"title": None, "format": ".2~%" if self.percent else "~s" if large else ".5~g", "tickCount": 4}
        scale: Spec = {"domain": [0, 1]} if whole else {"zero": self.zero, "nice": True}
        return {
            "x": {
                "field": "x",
                "type": "quantitative",
                "axis": {
                    "title": self.x_label or None,
                    "format": ",d",
                    "tickMinStep": 1,
                    "grid": False,
                    "tickCount": 6,
                },
                "scale": {"zero": False, "nice": False},
            },
            "y": {"field": "y", "type": "quantitative", "axis": y_axis, "scale": scale},
        }


@frozen(kw_only=True)
class Bars:
    """How often each of a few values came, with its share of all."""

    counts: Mapping[str, float]
    x_label: str

    @property
    def shown(self) -> dict[str, float]:
        """Return the counts, if any was seen."""
        return dict(self.counts) if sum(self.counts.values()) else {}

    def spec(self, width: int, height: int) -> Spec:
        """Return the chart's specification."""
        total = sum(self.counts.values())
        values = [{"x": name, "y": count, "share": f"{count / total:.1%}"} for name, count in self.counts.items()]
        x = {"field": "x", "type": "nominal", "sort": None, "axis": {"title": self.x_label, "labelAngle": 0}}
        y = {"field": "y", "type": "quantitative", "axis": None}
        bar = {"type": "bar", "color": "var(--c1)", "width": {"band": 0.6}}
        text = {"type": "text", "dy": -8, "color": "var(--dim)", "font": _FONT, "fontSize": 11}
        layers = [
            {"mark": bar, "encoding": {"x": x, "y": y}},
            {"mark": text, "encoding": {"x": x, "y": y, "text": {"field": "share"}}},
        ]
        return _frame(width, height) | {"data": {"values": values}, "layer": layers}


Chart = Line | Bars


def to_svg(chart: Chart, label: str, *, width: int = 452, height: int = 168) -> str:
    """Return a chart as inline SVG that takes the width it is given, under its legend.

    Raises:
        ImportError: vl-convert is not installed.
        ValueError: it cannot draw this.
    """
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(chart.spec(width, height))
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn)
    drawn = re.sub(r'^<svg version="[\d.]+" class="marks" width="[\d.]+" height="[\d.]+"', "<svg", drawn)
    drawn = re.sub(r' (role="graphics-\w+"|aria-\w+="[^"]*"|pointer-events="none")', "", drawn)
    return legend(chart) + drawn.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def to_png(chart: Chart, *, width: int = 800, height: int = 400) -> bytes:
    """Return a chart as a picture on white, with a legend in it; raises as `to_svg`."""
    import vl_convert

    spec = chart.spec(width, height) | {"background": "#ffffff", "padding": 16}
    if isinstance(chart, Line):  # a page's legend is beside the chart; a picture's is drawn by one more layer
        names = list(chart.shown)
        key = {"field": "name", "type": "nominal", "scale": {"domain": names, "range": _vars(chart, names)}}
        key |= {"legend": {"title": None, "orient": "top", "labelFontSize": 13, "symbolType": "stroke"}}
        point = {"data": {"values": []}, "mark": "line", "encoding": {"color": key}}
        spec["layer"] = [*spec["layer"], point]
    return bytes(vl_convert.vegalite_to_png(_in_light(spec), scale=1.5))


def legend(chart: Chart) -> str:
    """Return the names of series beside their colours, as HTML; one that there is no other of is named by the title."""
    if isinstance(chart, Bars) or len(chart.series) < 2:
        return ""
    pairs = zip(chart.shown, _vars(chart, list(chart.shown)), strict=False)
    keys = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in pairs)
    return f'<div class="legend">{keys}</div>'


def _can_be_drawn(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values)) and max(map(abs, values)) < _MOST


def _vars(chart: Line, names: Sequence[str]) -> list[str]:
    return [f"var({colour})" for colour in chart.colours[: len(names)]]


def _in_light(spec: Any) -> Any:  # Any: a part of a specification
    """Return a specification with colours in place of the page's variables."""
    if isinstance(spec, Mapping):
        return {name: _in_light(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_in_light(value) for value in spec]
    found = re.fullmatch(r"var\((--\w+)\)", spec) if isinstance(spec, str) else None
    return LIGHT[found[1]] if found else spec


def _frame(width: int, height: int) -> Spec:
    axis: Spec = {"labelColor": "var(--dim)", "titleColor": "var(--dim)", "labelFont": _FONT, "titleFont": _FONT}
    axis |= {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "titleAnchor": "end"}
    axis |= {"gridColor": "var(--edge)", "domain": False, "ticks": False, "labelPadding": 6, "titlePadding": 2}
    config: Spec = {"view": {"stroke": None}, "axis": axis, "axisX": {"domain": True, "domainColor": "var(--edge)"}}
    config["legend"] = {"labelFont": _FONT, "labelColor": "var(--text)"}
    size = {"width": width, "height": height, "padding": 2, "background": None}
    return size | {"autosize": {"type": "fit", "contains": "padding"}, "config": config}
