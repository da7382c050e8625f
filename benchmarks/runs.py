"""Runs of `areal train` on a quickstart preset, and what their run folders say about time.

Knows: presets, the cached starting model, metrics.jsonl.
Does not know: what a run is compared with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from attrs import asdict, frozen

from areal_core.config.load import load_config
from areal_core.config.schema import RunConfig
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.summary import evaluation_points
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.quickstart.warm_start import CHATS, RECIPES, cached_model, warm_start
from areal_tasks.tiny import make_spell_model
from areal_tasks.tiny_chat import make_chat_model

TIMEOUT_S = 1800


@frozen(kw_only=True)
class RunFigures:
    """One run. `seconds` span the first batch asked for to the end of the last step, evaluations left out."""

    seconds: float
    after_first_s: float
    """The same from the end of the first step on: whatever a first step warms up does not count."""
    steps: int
    final: float | None
    """Greedy reward on the held-out rows after the last step."""
    evaluations: list[tuple[float, float]]
    reached: list[tuple[float, float]]
    """(seconds, held-out reward) of every evaluation after a step, evaluations not counted."""
    reward_last: float
    train_busy_s: float
    infer_busy_s: float
    staleness_max: int
    tokens_generated: int
    tokens_trained: int
    parts: Mapping[str, float]
    """Seconds the loop spent waiting, training, syncing."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data. Any: json."""
        return asdict(self)


def starting_model(task: str, scratch: Path, *, quick: bool) -> Path:
    """Return the warm-started checkpoint of a task; makes it the first time, which takes a minute or more.

    Quick runs take the same model untrained, written to `scratch`.
    """
    if quick:
        make = make_chat_model if task in CHATS else make_spell_model
        return make(scratch / f"{task}-model", seed=1)
    recipe = RECIPES[task]
    cached = cached_model(recipe)
    if cached is not None:
        return cached
    print(f"fine-tuning the starting model of {task} once ({recipe.steps} steps) ...", flush=True)
    return frame.run(warm_start(recipe, default_registry(), lambda *_: None))


def preset(task: str, overrides: Sequence[str]) -> RunConfig:
    """Return the preset's configuration, as the run will read it."""
    return load_config(preset_path(task), overrides)


def areal_train(
    task: str,
    model: Path,
    folder: Path,
    overrides: Sequence[str],
    *,
    evaluate_every: int = 0,
    path: Path | None = None,
) -> RunFigures:
    """Run the preset, or another yaml, in a process of its own, exactly as a user would, and read its figures.

    Raises:
        SystemExit: the run failed; its last lines are shown.
    """
    command = train_command(path or preset_path(task), model, folder, overrides, evaluate_every=evaluate_every)
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    return figures(folder)


def train_command(
    path: Path, model: Path, folder: Path, overrides: Sequence[str], *, evaluate_every: int = 0
) -> list[str]:
    """Return the words of `areal train` for a yaml."""
    return [
        *(str(Path(sys.executable).with_name("areal")), "train", str(path)),
        *(f"model.path={model}", f"out={folder}", f"evaluation.every_steps={evaluate_every}"),
        *(f"evaluation.before={str(evaluate_every > 0).lower()}", *overrides),
    ]


def environment() -> dict[str, str]:
    """Return the variables of a run: it gives each worker the threads its plan says."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return kept | {"PYTHONWARNINGS": "ignore"}


def figures(folder: Path) -> RunFigures:
    """Read a finished run's folder."""
    records = list(read_lines(folder / "metrics.jsonl"))
    events = list(read_lines(folder / "events.jsonl"))
    first, last = records[0], records[-1]
    began = first["time"] - first["seconds"] - first["eval_s"]
    tenth = max(1, len(records) // 10)
    paused, at = 0.0, {}
    for record in records:
        paused += record["eval_s"]
        at[int(record["step"])] = record["time"] - began - paused
    seconds = at[int(last["step"])]
    evaluations = evaluation_points(History(records), Journal.of(events))
    return RunFigures(
        seconds=seconds,
        after_first_s=seconds - first["seconds"],
        steps=int(last["step"]),
        final=last.get("eval_reward"),
        evaluations=evaluations,
        reached=[(at[int(step)], reward) for step, reward in evaluations if int(step) in at],
        reward_last=sum(record["reward"] for record in records[-tenth:]) / tenth,
        train_busy_s=last["train_busy_s"],
        infer_busy_s=last["infer_busy_s"],
        staleness_max=max(int(record["staleness_max"]) for record in records),
        tokens_generated=int(last["tokens_generated"]),
        tokens_trained=int(last["tokens_trained"]),
        parts={part: sum(record[part] for record in records) for part in ("wait_s", "train_s", "sync_s")},
    )
