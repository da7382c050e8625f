"""Every preset on one offline task: the greedy reward on held-out words over the steps, in one picture.

Real runs of `areal train` on `examples/algorithms/`, one after the other, from one warm-started model, equal in
everything but the preset and the roles it needs. The figure is the least that any preset gained, its mean over
seeds: none may fail to learn. The picture goes to `docs/images/algorithms.png`: lines are means over seeds, a band
spans the lowest and the highest of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import runs

from areal_algorithms.presets import presets

EXAMPLES = frame.ROOT / "examples/algorithms"
PICTURE = frame.ROOT / "docs/images/algorithms.png"
Curve = Sequence[tuple[float, float]]


def curve(name: str, seed: int, model: Path, folder: Path, options: argparse.Namespace) -> Curve:
    """Train one preset with one seed; return (step, greedy reward on held-out words)."""
    steps, every = (4, 2) if options.quick else (options.steps, options.every)
    overrides = [f"steps={steps}", f"seed={seed}", f"rollout.max_staleness={options.max_staleness}"]
    example = EXAMPLES / f"{name.replace('++', '_pp')}.yaml"
    found = runs.areal_train("spell", model, folder, overrides, evaluate_every=every, path=example)
    return found.evaluations


def mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean reward over seeds, step by step."""
    return [(step, statistics.fmean(c[i][1] for c in curves)) for i, (step, _) in enumerate(curves[0])]


def band(name: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return the mean and what lies between the worst and the best seed, step by step. Any: json."""
    return [
        {"preset": name, "step": step, "reward": reward, "low": min(at), "high": max(at)}
        for i, (step, reward) in enumerate(mean(curves))
        for at in [[curve[i][1] for curve in curves]]
    ]


def picture(found: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Return a Vega-Lite picture: a panel for each preset, the other presets in grey behind it. Any: json."""
    bands = {name: band(name, curves) for name, curves in found.items()}
    rows = [row for each in bands.values() for row in each]
    highest = max(row["high"] for row in rows)
    x = {"field": "step", "type": "quantitative", "title": "step"}
    y = {"field": "reward", "type": "quantitative", "title": "held-out reward", "scale": {"domain": [0, highest]}}

    def line(data: Sequence[Mapping[str, Any]], **mark: Any) -> dict[str, Any]:
        return {
            "data": {"values": list(data)},
            "mark": {"type": "line", **mark},
            "encoding": {"x": x, "y": y, "detail": {"field": "preset"}},
        }

    def shade(data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "data": {"values": list(data)},
            "mark": {"type": "area", "color": "#1f5fa8", "opacity": 0.25},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }

    panels = [
        {
            "title": f"{name}  {mean(found[name])[-1][1]:.2f}",
            "width": 190,
            "height": 120,
            "layer": [
                line(rows, color="#d0d0d0", strokeWidth=1),
                shade(bands[name]),
                line(bands[name], color="#1f5fa8", strokeWidth=2.5),
            ],
        }
        for name in found
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "columns": 4,
        "concat": panels,
    }


def main() -> int:
    """Train all, draw, report."""
    parser = frame.parser(__doc__)
    names = [each.name for each in presets()]
    parser.add_argument("--presets", nargs="+", default=names, choices=names)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps from one evaluation to the next")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--max-staleness", type=int, default=2)
    options = parser.parse_args()
    found: dict[str, list[Curve]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = runs.starting_model("spell", Path(scratch), quick=options.quick)
        for name in options.presets:
            for seed in options.seeds[:1] if options.quick else options.seeds:
                folder = Path(scratch) / f"{name}-{seed}"
                found.setdefault(name, []).append(curve(name, seed, model, folder, options))
            print(f"{name}: {mean(found[name])[0][1]:.3f} -> {mean(found[name])[-1][1]:.3f}", flush=True)
    gains = {
        name: frame.Figure.of([curve[-1][1] - curve[0][1] for curve in curves], middle=statistics.fmean)
        for name, curves in found.items()
    }
    if not options.quick and options.presets == names:
        draw(found)
    result = frame.Result(
        name="algorithms",
        figure=frame.smallest(gains.values()),
        what=f"least gain in held-out reward of {len(found)} presets, spell, {options.steps} steps",
        details={"gains": gains, "seeds": options.seeds, "curves": found},
    )
    return frame.finish(result, quick=options.quick)


def draw(found: Mapping[str, Sequence[Curve]]) -> None:
    """Write the picture."""
    import vl_convert

    PICTURE.write_bytes(vl_convert.vegalite_to_png(picture(found), scale=1.0))


if __name__ == "__main__":
    sys.exit(main())
