"""Every kind of run but `rl` on one offline task, held-out rows over the steps, in one picture.

Real runs of `areal train` with a model of random weights that is to write three letters backward; the student of
`distill` has the model that `sft` made for its teacher, and `reward_model` begins with it, as reward models do. `sft`
is judged by its loss, pairs by how often the better answer scores higher, of which chance gives a half, `distill` by
the distance to the teacher. The figure is the least share of the way from the first value (or chance) to the best
possible one that any kind went, its mean over seeds. The picture goes to
`docs/images/kinds.png`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import frame
from attrs import frozen

from areal_core.observe.events import EVALUATED
from areal_core.observe.jsonl import read_lines
from areal_tasks.tiny import make_spell_model

PICTURE = frame.ROOT / "docs/images/kinds.png"
HELD = 64
Curve = Sequence[tuple[int, float]]


@frozen(kw_only=True)
class Kind:
    """What is measured of a kind, and what it would be at best."""

    name: str
    metric: str
    title: str
    best: float
    chance: float | None = None
    """What is as good as nothing, if that is not the first value."""
    lr: float = 3e-3


KINDS = (
    Kind(name="sft", metric="eval_loss", title="held-out loss", best=0.0),
    Kind(name="dpo", metric="eval_accuracy", title="held-out accuracy", best=1.0, chance=0.5),
    Kind(name="ipo", metric="eval_accuracy", title="held-out accuracy", best=1.0, chance=0.5),
    Kind(name="reward_model", metric="eval_accuracy", title="held-out accuracy", best=1.0, chance=0.5),
    Kind(name="distill", metric="train/reference_kl", title="KL to the teacher, nats", best=0.0),
)


def rows(folder: Path) -> None:
    """Write `train.jsonl` and `held.jsonl`: words that are answered backward, or wrongly; none is in both."""
    rng = Random(0)
    words = ["".join(letters) for letters in product("abcdefgh", repeat=3) if letters[0] != letters[2]]
    rng.shuffle(words)
    for name, chosen in {"train": words[HELD:], "held": words[:HELD]}.items():
        lines = [
            {"prompt": f"{word}>", "completion": word[::-1], "chosen": word[::-1], "rejected": _other(word, rng)}
            for word in chosen
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))


def _other(word: str, rng: Random) -> str:
    return next(other for other in iter(lambda: "".join(rng.sample(word, 3)), "") if other != word[::-1])


def run_of(kind: Kind, seed: int, folder: Path, steps: int, every: int) -> dict[str, Any]:
    """Return the configuration of one run. Any: as yaml has it."""
    data = {name: {"name": "jsonl", "options": {"path": str(folder / f"{name}.jsonl")}} for name in ("train", "held")}
    base = {
        "kind": kind.name,
        "seed": seed,
        "steps": steps,
        "out": str(folder / f"{kind.name}-{seed}"),
        "model": {"path": str(folder / "model")},
        "data": data["train"],
        "actor": {"optimizer": {"lr": kind.lr}},
    }
    taught = next((folder / f"sft-{seed}/checkpoints").glob("step-*/model"), folder / "model")
    if kind.name == "reward_model":
        base["model"] = {"path": str(taught)}
    if kind.name == "distill":
        return {
            **base,
            "options": {"teacher": {"path": str(taught)}},
            "rollout": {"prompts_per_step": 8, "group_size": 8, "sampling": {"max_new_tokens": 6}},
        }
    evaluation = {"data": data["held"], "every_steps": every, "before": True, "max_prompts": HELD}
    return {**base, "options": {"batch_size": 32}, "evaluation": evaluation}


def curve(kind: Kind, seed: int, folder: Path, options: argparse.Namespace) -> Curve:
    """Train one kind with one seed; return (step, what is measured).

    Raises:
        SystemExit: the run failed; its last lines are shown.
    """
    steps, every = (4, 2) if options.quick else (options.steps, options.every)
    config = run_of(kind, seed, folder, steps, every)
    path = folder / f"{kind.name}-{seed}.yaml"
    path.write_text(json.dumps(config))
    command = [str(Path(sys.executable).with_name("areal")), "train", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    return measured(Path(config["out"]), kind.metric)


def measured(folder: Path, metric: str) -> Curve:
    """Return a metric by step: of held-out rows, before the first step too, or else of what was trained."""
    evaluated = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == EVALUATED]
    if metric.startswith("eval_"):
        return [(int(event["version"]), float(event[metric.removeprefix("eval_")])) for event in evaluated]
    return [(int(record["step"]), float(record[metric])) for record in read_lines(folder / "metrics.jsonl")]


def band(curves: Sequence[Curve]) -> list[dict[str, float]]:
    """Return the mean over seeds and what lies between the lowest and the highest, step by step."""
    return [
        {"step": at[0][0], "value": statistics.fmean(values), "low": min(values), "high": max(values)}
        for at in zip(*curves, strict=True)
        for values in [[value for _, value in at]]
    ]


def share(kind: Kind, curves: Sequence[Curve]) -> frame.Figure:
    """Return how much of the way from the first value to the best one was gone, a turn for each seed."""
    first = [curve[0][1] if kind.chance is None else kind.chance for curve in curves]
    gone = [curve[-1][1] - begun for curve, begun in zip(curves, first, strict=True)]
    return frame.Figure.of(gone, [kind.best - begun for begun in first], middle=statistics.fmean)


def picture(found: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Return a Vega-Lite picture, a panel for each kind: the mean over seeds, and a band around it. Any: json."""
    x = {"field": "step", "type": "quantitative", "title": "step"}

    def panel(kind: Kind) -> dict[str, Any]:
        y = {"type": "quantitative", "title": kind.title, "scale": {"zero": True}}
        bounds = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
        return {
            "title": kind.name,
            "width": 190,
            "height": 120,
            "data": {"values": band(found[kind.name])},
            "layer": [
                {"mark": {"type": "area", "color": "#1f5fa8", "opacity": 0.25}, "encoding": bounds},
                {
                    "mark": {"type": "line", "color": "#1f5fa8", "strokeWidth": 2.5},
                    "encoding": {"x": x, "y": {**y, "field": "value"}},
                },
            ],
        }

    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "columns": 3,
        "concat": [panel(kind) for kind in KINDS],
    }


def main() -> int:
    """Train all, draw, report."""
    parser = frame.parser(__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps from one evaluation to the next")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    found: dict[str, list[Curve]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows(folder)
        make_spell_model(folder / "model", seed=1)
        for kind in KINDS:  # sft first: it makes the teachers
            for seed in options.seeds[:1] if options.quick else options.seeds:
                found.setdefault(kind.name, []).append(curve(kind, seed, folder, options))
            first, last = band(found[kind.name])[0]["value"], band(found[kind.name])[-1]["value"]
            print(f"{kind.name}: {kind.title} {first:.3f} -> {last:.3f}", flush=True)
    shares = {kind.name: share(kind, found[kind.name]) for kind in KINDS}
    if not options.quick:
        draw(found)
    result = frame.Result(
        name="kinds",
        figure=frame.smallest(shares.values()),
        what=f"least share of the way to the best value that a kind went in {options.steps} steps",
        details={"shares": shares, "seeds": options.seeds, "curves": found},
    )
    return frame.finish(result, quick=options.quick)


def draw(found: Mapping[str, Sequence[Curve]]) -> None:
    """Write the picture."""
    import vl_convert

    PICTURE.write_bytes(vl_convert.vegalite_to_png(picture(found), scale=1.0))


if __name__ == "__main__":
    sys.exit(main())
