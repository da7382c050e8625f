"""A multi-turn task and a task with a tool, learnt offline with each engine: held-out reward, answers, calls.

Real runs of `areal train` on the presets `spell_again` and `sums`, one after the other, each from its warm-started chat
model of 110k parameters, with the reference generator and with vLLM and SGLang on the CPU. The figure is the least
greedy reward on held-out rows that a task reached with an engine, its mean over seeds. The picture goes to
`docs/images/agents.png`: lines are means over seeds, a band spans the lowest and the highest of them.

An engine without an environment (`areal env create vllm --device cpu`) is left out, and said to be. The picture is
drawn if no engine is. With `--folder` the run folders are kept, and a run that finished in it is not repeated.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import runs
from attrs import asdict, frozen

from areal_core.contract.errors import EngineMissing
from areal_core.observe.jsonl import read_lines
from areal_serving import environment

PICTURE = frame.ROOT / "docs/images/agents.png"
Curve = Sequence[tuple[float, float]]
REFERENCE = "reference"
COLOURS = {REFERENCE: "#1f5fa8", "vllm": "#b5541c", "sglang": "#3c8b4a"}
"""Engines, in the order in which they run."""


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
    Task(name="spell_again", metric="episode/turns", says="answers of an episode", steps=40),
    Task(name="sums", metric="episode/tools/calls", says="calls of the calculator", steps=24),
)


@frozen(kw_only=True)
class Run:
    """What one run showed, by step."""

    task: str
    engine: str
    seed: int
    rewards: Curve
    """Greedy, on held-out rows."""
    measured: Curve
    """The task's metric, of the episodes trained on."""
    seconds: float
    """Evaluations left out."""

    def __str__(self) -> str:
        """Say what it came to."""
        first, last = self.rewards[0][1], self.rewards[-1][1]
        return f"{self.task}, {self.engine}, seed {self.seed}: {first:.3f} -> {last:.3f} in {self.seconds:.0f} s"


def train(task: Task, engine: str, seed: int, model: Path, folder: Path, *, quick: bool) -> Run:
    """Train one task with one engine and one seed."""
    steps, every = (4, 2) if quick else (task.steps, task.steps // 8)
    overrides = [f"steps={steps}", f"seed={seed}", "evaluation.max_prompts=64", f"rollout.backend={engine}:d1"]
    if engine != REFERENCE:
        overrides.append("rollout.options={kv_cache_gib: 0.25}")
    if finished(folder):
        found = runs.figures(folder)
    else:
        found = runs.areal_train(task.name, model, folder, overrides, evaluate_every=every)
    measured = [(float(line["step"]), float(line[task.metric])) for line in read_lines(folder / "metrics.jsonl")]
    return Run(
        task=task.name,
        engine=engine,
        seed=seed,
        rewards=found.evaluations,
        measured=measured,
        seconds=found.seconds,
    )


def finished(folder: Path) -> bool:
    """Tell whether a folder holds a run that went to its end."""
    summary = folder / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"


def at_hand(engines: Sequence[str]) -> Iterator[str]:
    """Yield the engines that can be started here; say which cannot."""
    for engine in engines:
        try:
            if engine != REFERENCE:
                environment.find(engine, "cpu")
        except EngineMissing as error:
            print(f"{engine} is left out: {error}", flush=True)
        else:
            yield engine


def band(engine: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return mean, lowest and highest over seeds, step by step. Any: json."""
    return [
        {"engine": engine, "step": at[0][0], "mean": statistics.fmean(values), "low": min(values), "high": max(values)}
        for at in zip(*curves, strict=True)
        for values in [[value for _, value in at]]
    ]


def panel(title: str, axis: str, curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Return one panel of Vega-Lite, a line for each engine. Any: json."""
    x = {"field": "step", "type": "quantitative", "title": "step"}
    y = {"field": "mean", "type": "quantitative", "title": axis, "scale": {"zero": True}}
    scale = {"domain": list(curves), "range": [COLOURS[engine] for engine in curves]}
    colour = {"field": "engine", "type": "nominal", "scale": scale, "legend": {"title": None, "symbolOpacity": 1}}
    bounds = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
    return {
        "title": title,
        "width": 250,
        "height": 150,
        "data": {"values": [row for engine, found in curves.items() for row in band(engine, found)]},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.2}, "encoding": bounds},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}},
        ],
    }


def picture(found: Sequence[Run]) -> dict[str, Any]:
    """Return a row of two panels for each task. Any: json."""
    panels = []
    for task in TASKS:
        mine = [run for run in found if run.task == task.name]
        rewards, measured = (
            {engine: [getattr(run, what) for run in mine if run.engine == engine] for engine in COLOURS}
            for what in ("rewards", "measured")
        )
        panels.append(panel(task.name, "held-out reward", rewards))
        panels.append(panel(task.name, task.says, measured))
    schema = "https://vega.github.io/schema/vega-lite/v5.json"
    return {"$schema": schema, "background": "white", "columns": 2, "concat": panels}


def reached(found: Sequence[Run]) -> dict[str, dict[str, dict[str, frame.Figure]]]:
    """Return the first and the last reward of each task with each engine, means over seeds."""
    table: dict[str, dict[str, dict[str, frame.Figure]]] = {}
    for task, engine in {(run.task, run.engine): None for run in found}:
        rewards = [run.rewards for run in found if (run.task, run.engine) == (task, engine)]
        table.setdefault(task, {})[engine] = {
            name: frame.Figure.of([curve[place][1] for curve in rewards], middle=statistics.fmean)
            for name, place in (("first", 0), ("last", -1))
        }
    return table


def main() -> int:
    """Train all, draw, report."""
    parser = frame.parser(__doc__)
    parser.add_argument("--engines", nargs="+", default=list(COLOURS), choices=COLOURS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="where run folders are kept")
    options = parser.parse_args()
    engines = list(at_hand([REFERENCE] if options.quick else options.engines))
    found: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch:
        for task in TASKS:
            model = runs.starting_model(task.name, Path(scratch), quick=options.quick)
            for engine in engines:
                for seed in options.seeds[:1] if options.quick else options.seeds:
                    folder = (options.folder or Path(scratch)) / f"{task.name}-{engine}-{seed}"
                    found.append(train(task, engine, seed, model, folder, quick=options.quick))
                    print(found[-1], flush=True)
    if engines == list(COLOURS):
        import vl_convert

        PICTURE.write_bytes(vl_convert.vegalite_to_png(picture(found), scale=1.5))
    table = reached(found)
    result = frame.Result(
        name="agents",
        figure=frame.smallest(at["last"] for by_engine in table.values() for at in by_engine.values()),
        what="least held-out reward that a multi-turn task or a task with a tool reached with an engine",
        details={"reached": table, "seeds": options.seeds, "runs": [asdict(run) for run in found]},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
