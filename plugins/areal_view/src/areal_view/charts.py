"""Charts as Vega-Lite: what a mark shows, never a colour of the page (`static/app.js` brings light and dark).

Knows: three shapes: lines over steps, bars, spans of time.
Does not know: metrics, runs or episodes by name. Names in data are data: nothing of them is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]  # Any: JSON
DATA = "points"
"""The data set of every chart; the page replaces it when a run goes on."""
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#d6a419")
"""One colour per run; readable on white and on black. The style sheet's `c0` to `c7` are the same."""
DOING = {
    "waits for episodes": "#c9a227",
    "trains": "#4c78a8",
    "updates weights": "#54a24b",
    "other": "#9aa0aa",
    "evaluates": "#b279a2",
    "generates": "#72b7b2",
    "changes hands": "#9d755d",
}
"""What a part of a run does, and its colour. The style sheet's `d0` to `d6` are the same."""


def lines(values: Sequence[Spec], runs: Sequence[str], *, height: int = 180) -> Spec:
    """Return curves: fields `s` (step), `v` (value), `m` (smoothed) and `r` (run)."""
    colour = {"field": "r", "type": "nominal", "legend": None, "scale": {"domain": list(runs), "range": list(PALETTE)}}
    x = {"field": "s", "type": "quantitative", "title": None, "scale": {"nice": False}}
    smooth = {"field": "m", "type": "quantitative", "title": None, "scale": {"zero": False}}
    hover = {"type": "point", "nearest": True, "on": "pointermove", "clear": "pointerout", "fields": ["s", "r"]}
    tooltip = [
        {"field": "r", "title": "run"},
        {"field": "s", "title": "step", "format": ",.0f"},
        {"field": "v", "title": "value", "format": ".5~g"},
    ]
    return {
        **_chart(values, height),
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": {"type": "line", "opacity": 0.28, "strokeWidth": 1}, "encoding": {"y": {**smooth, "field": "v"}}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": smooth}},
            {
                "mark": {"type": "point", "filled": True, "size": 60},
                "params": [{"name": "hover", "select": hover}],
                "encoding": {
                    "y": smooth,
                    "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
                    "tooltip": tooltip,
                },
            },
        ],
    }


def bars(values: Sequence[Spec], title: str, *, whole: bool = False, height: int = 200) -> Spec:
    """Return a histogram: fields `a`, `b` (from, to) and `n` (episodes); `whole`: there is nothing between 1 and 2."""
    axis = {"tickMinStep": 1, "format": ",.0f"} if whole else {}
    tooltip = [{"field": "a", "title": "from", "format": ".5~g"}, {"field": "b", "title": "below", "format": ".5~g"}]
    return {
        **_chart(values, height),
        "mark": {"type": "bar", "color": PALETTE[0], "binSpacing": 1},
        "encoding": {
            "x": {"field": "a", "type": "quantitative", "bin": {"binned": True}, "title": title, "axis": axis},
            "x2": {"field": "b"},
            "y": {"field": "n", "type": "quantitative", "title": "episodes"},
            "tooltip": [*tooltip, {"field": "n", "title": "episodes"}],
        },
    }


def spans(values: Sequence[Spec], lanes: Sequence[str]) -> Spec:
    """Return lanes of what each part did: `lane`, `a`, `b` (seconds), `doing`, `share`, `text`; marks where `event`."""
    y = {
        "field": "lane",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(lanes)},
        "axis": {"labelLimit": 110, "ticks": False, "domain": False},
    }
    x = {
        "field": "a",
        "type": "quantitative",
        "title": "seconds since the run began",
        "scale": {"zero": False, "nice": False},
    }
    colour = {"domain": list(DOING), "range": list(DOING.values())}
    tooltip = [
        {"field": "doing", "title": "doing"},
        {"field": "text", "title": "what"},
        {"field": "a", "title": "from", "format": ",.2f"},
        {"field": "b", "title": "to", "format": ",.2f"},
    ]
    bars: Spec = {
        "transform": [{"filter": "!datum.event"}],
        "mark": {"type": "bar", "height": {"band": 0.72}},
        "encoding": {
            "x": x,
            "x2": {"field": "b"},
            "color": {"field": "doing", "type": "nominal", "legend": None, "scale": colour},
            "opacity": {
                "field": "share",
                "type": "quantitative",
                "legend": None,
                "scale": {"domain": [0, 1], "range": [0.15, 1]},
            },
            "tooltip": tooltip,
        },
    }
    marks: Spec = {
        "transform": [{"filter": "datum.event"}],
        "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 90, "color": "#e45756"},
        "encoding": {"x": x, "tooltip": tooltip[:3]},
    }
    layers = [bars, marks] if any(value["event"] for value in values) else [bars]  # an empty layer has no extent
    return {**_chart(values, 40 * max(1, len(lanes))), "encoding": {"y": y}, "layer": layers}


def _chart(values: Sequence[Spec], height: int) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": DATA, "values": list(values)},
    }
