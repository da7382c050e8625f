"""What `placement: shared` saves in memory and costs in time: the peak of a run's workers by turns against others.

Runs of the same task with the same model, one after the other, several times in turns; the smaller figure counts.
Resident memory of the trainer and of the generator is summed a hundred times a second; what an interpreter with its
libraries takes is in both sides, and told apart in the details. Seconds are those of a step, the first one left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frame
import psutil
from attrs import frozen

from areal_core.observe.jsonl import read_lines
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.testing.models import make_tiny_model

KINDS = {"shared": ["placement=shared"], "separate": list[str](), "separate, staleness 0": ["rollout.max_staleness=0"]}
"""The second is what a user has who sets nothing; the third has no overlap either."""
SETTINGS = (
    "actor.backend=reference:d1",
    "rollout.sampling.max_new_tokens=24",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "evaluation.data=null",
    "checkpoint.every_s=0",
    "episodes.keep=0",
)
LOOK_S = 0.01


@frozen(kw_only=True)
class Figures:
    """One run: peak bytes of both workers together, of each alone, and seconds by part of a step."""

    peak: int
    actor: int
    rollout: int
    step_s: float
    parts: dict[str, float]


def main() -> int:
    """Run every kind in turns and write the result."""
    options = frame.parser(__doc__).parse_args()
    rounds, steps, layers = (1, 3, 2) if options.quick else (2, 7, 12)
    found: dict[str, list[Figures]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(
            Path(scratch) / "model", hidden=128 if options.quick else 640, layers=layers, heads=10, head_dim=64
        )
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        for number in range(rounds):
            for kind, overrides in KINDS.items():
                folder = Path(scratch) / f"{number}-{kind.replace(', ', '-').replace(' ', '-')}"
                found[kind].append(measured(model, folder, [*SETTINGS, f"steps={steps}", *overrides]))
                print(f"{kind}: {found[kind][-1]}", flush=True)
    best = {kind: min(each.peak for each in figures) for kind, figures in found.items()}
    step = {kind: min(each.step_s for each in figures) for kind, figures in found.items()}
    details: dict[str, Any] = {  # Any: json
        "weights_bytes": weights,
        "peak_bytes": best,
        "step_s": step,
        "step_ratio": step["shared"] / step["separate"],
        "step_ratio_without_overlap": step["shared"] / step["separate, staleness 0"],
        "runs": {kind: [_plain(each) for each in figures] for kind, figures in found.items()},
    }
    frame.finish(
        frame.Result(
            name="shared_devices",
            ratio=best["shared"] / best["separate"],
            target=None,
            what="peak memory of all workers by turns / on devices of their own",
            lower_is_better=True,
            details=details,
        ),
        quick=options.quick,
    )
    told = f"{details['step_ratio']:.3g}, without overlap {details['step_ratio_without_overlap']:.3g}"
    print(f"seconds of a step by turns / on devices of their own: {told}", flush=True)
    return 0


def measured(model: Path, folder: Path, overrides: list[str]) -> Figures:
    """Run the quickstart's task and look at the memory of its workers until it ends."""
    areal = str(Path(sys.executable).with_name("areal"))
    words = [areal, "train", str(preset_path("spell")), f"model.path={model}", f"out={folder}", *overrides]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("OMP_NUM_THREADS", None)
    seen: list[tuple[int, int]] = []
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        workers: dict[str, psutil.Process] = {}
        while run.poll() is None:
            workers = workers if len(workers) == 2 else _workers(run.pid, folder)
            seen.append(tuple(_resident(workers.get(role)) for role in ("actor", "rollout")))  # type: ignore[arg-type]
            time.sleep(LOOK_S)
        output = run.stdout.read() if run.stdout else ""
    if run.returncode:
        raise SystemExit("\n".join(output.splitlines()[-20:]))
    records = list(read_lines(folder / "metrics.jsonl"))[1:]
    names = [name for name in ("wait_s", "train_s", "sync_s", "turn_s") if name in records[-1]]
    return Figures(
        peak=max(map(sum, seen)),
        actor=max(actor for actor, _ in seen),
        rollout=max(rollout for _, rollout in seen),
        step_s=statistics.median(record["seconds"] for record in records),
        parts={name: statistics.median(record[name] for record in records) for name in names},
    )


def _workers(controller: int, folder: Path) -> dict[str, psutil.Process]:
    """Return the processes that write the logs of the trainer and of the generator, as far as there are any."""
    logs = {str(folder / "logs" / f"{role}-0.log"): role for role in ("actor", "rollout")}
    found: dict[str, psutil.Process] = {}
    try:
        for child in psutil.Process(controller).children():
            role = logs.get(str(Path(f"/proc/{child.pid}/fd/1").resolve()))
            if role is not None:
                found[role] = child
    except (OSError, psutil.Error):
        return found
    return found


def _resident(process: psutil.Process | None) -> int:
    try:
        return 0 if process is None else int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _plain(figures: Figures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in ("peak", "actor", "rollout", "step_s", "parts")}


if __name__ == "__main__":
    raise SystemExit(main())
