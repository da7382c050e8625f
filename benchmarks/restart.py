"""What a lost trainer costs: seconds until the run trains again, with the fleet kept and with all of it started anew.

The actor of a small run is killed in its second step. A run with `profile:` cannot keep its fleet, which makes the one
to compare with; the step it traces comes later. `--backend vllm:d1` measures another engine than the reference one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import frame
import psutil
import runs

from areal_core.observe.events import RUN_RESTARTED
from areal_core.observe.jsonl import read_lines
from areal_tasks.quickstart.quickstart import preset_path

STEPS = 4
HANDED_OVER = "batch_handed_over"


def seconds_lost(folder: Path, model: Path, backend: str, *, anew: bool) -> float:
    """Run, kill the actor in the second step, and return the seconds from its loss to the next batch it trains on."""
    settings = (f"out={folder}", f"model.path={model}", "actor.backend=reference:d1", f"rollout.backend={backend}")
    small = (f"steps={STEPS}", "rollout.prompts_per_step=2", "evaluation.before=false", "evaluation.every_steps=0")
    words = ["train", str(preset_path("spell")), *settings, *small, *([f"profile.steps=[{STEPS}]"] if anew else [])]
    run = subprocess.Popen([sys.executable, "-m", "areal_core.cli.main", *words], stdout=subprocess.DEVNULL)
    events = folder / "events.jsonl"
    while sum(event["kind"] == HANDED_OVER for event in read_lines(events)) < 2:
        time.sleep(0.02)
        if run.poll() is not None:
            raise RuntimeError(f"the run ended: {folder}")
    _actor(run.pid, folder).kill()
    if run.wait(runs.TIMEOUT_S):
        raise RuntimeError(f"the run failed: {folder}")
    told = list(read_lines(events))
    [number] = [number for number, event in enumerate(told) if event["kind"] == RUN_RESTARTED]
    assert bool(told[number]["kept"]) is not anew
    after = next(event for event in told[number:] if event["kind"] == HANDED_OVER)
    return float(after["time"] - told[number]["time"])


def _actor(controller: int, folder: Path) -> psutil.Process:
    log = str(folder / "logs" / "actor-0.log")
    for child in psutil.Process(controller).children():
        with suppress(OSError):
            if str(Path(f"/proc/{child.pid}/fd/1").resolve()) == log:
                return child
    raise RuntimeError("the run has no actor")


def main() -> int:
    """Measure in turns, so that a change in the machine's load meets both alike."""
    parser = frame.parser(__doc__)
    parser.add_argument("--backend", default="reference:d2", help="inference engine and layout")
    options = parser.parse_args()
    repeats = 1 if options.quick else 5
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name).resolve()
        model = runs.starting_model("spell", scratch, quick=True)
        for number in range(repeats):
            for anew, found in seconds.items():
                folder = scratch / f"{'anew' if anew else 'kept'}-{number}"
                found.append(seconds_lost(folder, model, options.backend, anew=anew))
                print(f"{'all anew' if anew else 'fleet kept'}: {found[-1]:.1f} s", flush=True)
    result = frame.Result(
        name=f"restart_{options.backend.partition(':')[0]}",
        figure=frame.Figure.of(seconds[True], seconds[False]),
        what="seconds from the loss of the actor to the next trained batch, all started anew / the fleet kept",
        script="restart",
        details={"backend": options.backend, "kept_s": seconds[False], "anew_s": seconds[True]},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
