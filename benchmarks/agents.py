"""A multi-turn task and a task with a tool, learnt offline: held-out reward, turns and calls over the steps.

Real runs of `areal train` on the presets `spell_again` and `sums`, one after the other, each from its warm-started chat
model of 110k parameters. The figure is the least that either gained in greedy reward on held-out rows, its mean over
seeds. The picture goes to `docs/images/agents.png`: lines are means over seeds, a band spans the lowest and the
highest of them.
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
from attrs import frozen

from areal_core.observe.jsonl import read_lines

PICTURE = frame.ROOT / "docs/images/agents.png"
Curve = Sequence[tuple[float, float]]
_COLOURS = ("#1f5fa8", "#b5541c")


@frozen(kw_only=True)
class Task:
    """One preset, and what it shows beside the reward.

    Example: Task(name="sums", metric="episode/tools/calls", says="calls of the calculator", steps=24)
    """

    name: str
    metric: str
    says: str
    steps: int


TASKS = (
    Task(name="spell_again", metric="episode/turns", says="answers until right, 3 at most", steps=40),
    Task(name="sums", metric="episode/tools/calls", says="calls of the calculator", steps=24),
)


def curves(task: Task, seed: int, model: Path, folder: Path, *, quick: bool) -> tuple[Curve, Curve]:
    """Train one task with one seed; return its greedy held-out reward, and its metric of training episodes, by step."""
    steps, every = (4, 2) if quick else (task.steps, task.steps // 4)
    overrides = [f"steps={steps}", f"seed={seed}", "evaluation.max_prompts=64"]
    found = runs.areal_train(task.name, model, folder, overrides, evaluate_every=every)
    measured = [(float(line["step"]), float(line[task.metric])) for line in read_lines(folder / "metrics.jsonl")]
    return found.evaluations, measured


def band(found: Sequence[Curve]) -> list[dict[str, float]]:
    """Return mean, lowest and highest over seeds, step by step."""
    rows = []
    for at in zip(*found, strict=True):
        values = [value for _, value in at]
        rows.append({"step": at[0][0], "mean": statistics.fmean(values), "low": min(values), "high": max(values)})
    return rows


def panel(title: str, axis: str, rows: Sequence[Mapping[str, float]], colour: str) -> dict[str, Any]:
    """Return one panel of Vega-Lite. Any: json."""
    x = {"field": "step", "type": "quantitative", "title": "step"}
    y = {"field": "mean", "type": "quantitative", "title": axis, "scale": {"zero": True}}
    shade = {
        "mark": {"type": "area", "color": colour, "opacity": 0.25},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    line = {"mark": {"type": "line", "color": colour, "strokeWidth": 2.5}, "encoding": {"x": x, "y": y}}
    return {"title": title, "width": 250, "height": 150, "data": {"values": list(rows)}, "layer": [shade, line]}


def picture(rewards: Mapping[str, Sequence[Curve]], measured: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Return a row of two panels for each task. Any: json."""
    panels = []
    for task in TASKS:
        panels.append(panel(task.name, "held-out reward", band(rewards[task.name]), _COLOURS[0]))
        panels.append(panel(task.name, task.says, band(measured[task.name]), _COLOURS[1]))
    schema = "https://vega.github.io/schema/vega-lite/v5.json"
    return {"$schema": schema, "background": "white", "columns": 2, "concat": panels}


def main() -> int:
    """Train both, draw, report."""
    parser = frame.parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options: argparse.Namespace = parser.parse_args()
    rewards: dict[str, list[Curve]] = {}
    measured: dict[str, list[Curve]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for task in TASKS:
            model = runs.starting_model(task.name, Path(scratch), quick=options.quick)
            for seed in options.seeds[:1] if options.quick else options.seeds:
                made = curves(task, seed, model, Path(scratch) / f"{task.name}-{seed}", quick=options.quick)
                rewards.setdefault(task.name, []).append(made[0])
                measured.setdefault(task.name, []).append(made[1])
                print(f"{task.name}, seed {seed}: {made[0][0][1]:.3f} -> {made[0][-1][1]:.3f}", flush=True)
    gains = {name: band(found)[-1]["mean"] - band(found)[0]["mean"] for name, found in rewards.items()}
    if not options.quick:
        import vl_convert

        PICTURE.write_bytes(vl_convert.vegalite_to_png(picture(rewards, measured), scale=1.5))
    result = frame.Result(
        name="agents",
        ratio=min(gains.values()),
        target=0.3,
        what="least gain in held-out reward of a multi-turn task and a task with a tool",
        details={"gains": gains, "seeds": options.seeds, "rewards": rewards, "measured": measured},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
