"""What `placement: shared` saves in memory and costs in time: the peak of a run's workers by turns against others.

Runs of the same task with the same model, one after the other, several times in turns; medians count.
Memory of the trainer and of the generator is summed a hundred times a second: resident memory, of which an interpreter
with its libraries is in both sides and told apart in the details; with `--device cuda` memory of the GPU, as its
driver tells it of each process. The other side then has the same GPU all the time, so that one is enough for both.
Seconds are those of a step, the first one left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame
import psutil
import workload
from attrs import frozen

from areal_core.observe.jsonl import read_lines
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.testing.models import make_tiny_model

KINDS = {"shared": ["placement=shared"], "separate": list[str](), "separate, staleness 0": ["rollout.max_staleness=0"]}
"""The second is what a user has who sets nothing; the third has no overlap either."""
TOGETHER = ("rollout.placement.together_with.role=actor", "rollout.placement.together_with.share=devices")
SETTINGS = (
    "rollout.sampling.max_new_tokens=24",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "evaluation.data=null",
    "checkpoint.every_s=0",
    "episodes.keep=0",
)
LOOK_S = 0.01
Memory = Callable[["psutil.Process | None", "psutil.Process | None"], tuple[int, int]]
"""Bytes of the trainer and of the generator; None is one that does not run."""


@frozen(kw_only=True)
class Figures:
    """One run: peak bytes of both workers together, of each alone, and seconds by part of a step."""

    peak: int
    actor: int
    rollout: int
    beside_actor: int
    """What the generator had, in the median, while the trainer had half of its peak or more."""
    beside_rollout: int
    step_s: float
    parts: dict[str, float]


def main() -> int:
    """Run every kind in turns and write the result."""
    parser = frame.parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--train", default="reference:d1", help="the trainer, for example fsdp:d1")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind, in turns; medians count")
    options = parser.parse_args()
    gpu = options.device != "cpu"
    rounds, steps = (1, 3) if options.quick else (options.rounds, 5 if gpu else 7)
    found: dict[str, list[Figures]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        model = _model(Path(scratch), options.device, quick=options.quick)
        memory = _of_gpu if gpu else _resident
        own = [f"device={options.device}", f"actor.backend={options.train}", f"steps={steps}"]
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        for number in range(rounds):
            for kind, overrides in KINDS.items():
                folder = Path(scratch) / f"{number}-{kind.replace(', ', '-').replace(' ', '-')}"
                beside = TOGETHER if gpu and kind != "shared" else ()
                found[kind].append(measured(model, folder, [*SETTINGS, *own, *overrides, *beside], memory))
                print(f"{kind}: {found[kind][-1]}", flush=True)
    peaks = {kind: [each.peak for each in figures] for kind, figures in found.items()}
    steps_s = {kind: [each.step_s for each in figures] for kind, figures in found.items()}
    details: dict[str, Any] = {  # Any: json
        "weights_bytes": weights,
        "peak_bytes": {kind: statistics.median(values) for kind, values in peaks.items()},
        "step_s": {kind: statistics.median(values) for kind, values in steps_s.items()},
        "step_ratio": frame.Figure.of(steps_s["shared"], steps_s["separate"]),
        "step_ratio_without_overlap": frame.Figure.of(steps_s["shared"], steps_s["separate, staleness 0"]),
        "runs": {kind: [_plain(each) for each in figures] for kind, figures in found.items()},
    }
    frame.finish(
        frame.Result(
            name="shared_devices" if not gpu else f"shared_devices_{options.device}_{options.train.partition(':')[0]}",
            script="shared_devices",
            figure=frame.Figure.of(peaks["shared"], peaks["separate"]),
            what=f"peak memory of all workers by turns / {'both on one GPU' if gpu else 'on devices of their own'}",
            details=details,
        ),
        quick=options.quick,
    )
    told = f"{details['step_ratio']}; without overlap {details['step_ratio_without_overlap']}"
    print(f"seconds of a step by turns / on devices of their own: {told}", flush=True)
    return 0


def measured(model: Path, folder: Path, overrides: list[str], memory: Memory) -> Figures:
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
            seen.append(memory(workers.get("actor"), workers.get("rollout")))
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
        beside_actor=_beside([(actor, rollout) for actor, rollout in seen]),
        beside_rollout=_beside([(rollout, actor) for actor, rollout in seen]),
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


def _beside(seen: list[tuple[int, int]]) -> int:
    """Return what the second had while the first had half of its peak or more, the median."""
    most = max(first for first, _ in seen)
    return int(statistics.median(second for first, second in seen if 2 * first >= most))


def _resident(*processes: psutil.Process | None) -> tuple[int, int]:
    actor, rollout = (_rss(process) for process in processes)
    return actor, rollout


def _rss(process: psutil.Process | None) -> int:
    try:
        return 0 if process is None else int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _of_gpu(*processes: psutil.Process | None) -> tuple[int, int]:
    import pynvml  # of nvidia-ml-py, which torch asks as well

    pynvml.nvmlInit()
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    used = {each.pid: int(each.usedGpuMemory or 0) for each in running}
    actor, rollout = (0 if process is None else used.get(process.pid, 0) for process in processes)
    return actor, rollout


def _model(scratch: Path, device: str, *, quick: bool) -> Path:
    """Make a model of 41 million parameters, on a GPU of 0.3 billion."""
    if device != "cpu" and not quick:
        return workload.make_model(scratch, "medium")
    hidden, layers = (128, 2) if quick else (640, 12)
    return make_tiny_model(scratch / "model", hidden=hidden, layers=layers, heads=10, head_dim=64)


def _plain(figures: Figures) -> dict[str, Any]:
    return {
        name: getattr(figures, name)
        for name in ("peak", "actor", "rollout", "beside_actor", "beside_rollout", "step_s", "parts")
    }


if __name__ == "__main__":
    raise SystemExit(main())
