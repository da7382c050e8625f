"""What checkpoints cost: seconds of one exact checkpoint against the seconds of the steps between two of them.

A checkpoint is what the loop writes: the exact state of the FSDP engine and the policy as a model folder.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import frame
import workload

from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_fsdp.engine import FSDPEngine

INTERVAL = 50
"""Steps between two checkpoints."""


def measure(folder: Path, size: str, num_sequences: int, repeats: int) -> dict[str, Any]:
    """Time steps and checkpoints of one model in turns. Any: json."""
    path = workload.make_model(folder, size)
    batch = workload.long_tailed_batch(num_sequences)
    engine = FSDPEngine()
    spec = TrainSpec(role="actor", model_path=str(path), optimizer=OptimizerSpec(lr=workload.LR))
    store = f"file://{folder}/store-{size}"
    engine.start(spec, RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=store))
    objective = SFTObjective(SFTConfig())
    numbers = count()

    def checkpoint() -> None:
        target = folder / f"{size}-{next(numbers)}"
        target.mkdir()
        engine.save_state(target / "actor")
        engine.save_weights(target / "model")

    timing = frame.compare(
        {"step": lambda: engine.train_step(batch, objective), "checkpoint": checkpoint}, repeats=repeats
    )
    last = folder / f"{size}-{next(numbers) - 1}" / "actor"
    stalls = background(engine, lambda: engine.train_step(batch, objective), folder / f"{size}-begun", repeats)
    saved_alone = frame.compare({"save": lambda: engine.save_state(folder / f"{size}-saved")}, repeats=repeats)
    loaded = frame.compare({"load": lambda: engine.load_state(last)}, repeats=repeats)
    engine.close()
    step, saved = timing["step"].median, timing["checkpoint"].median
    between = [INTERVAL * seconds for seconds in timing["step"].seconds]
    return {
        "overhead": frame.Figure.of(timing["checkpoint"].seconds, between),
        "step_s": step,
        "checkpoint_s": saved,
        "load_s": loaded["load"].median,
        "state_s": saved_alone["save"].median,
        "background": {**stalls, "stall": stalls["begin_s"] / saved_alone["save"].median},
    }


def background(engine: FSDPEngine, step: Callable[[], object], path: Path, repeats: int) -> dict[str, float]:
    """Time a state that is written during one step: what begins it, the step, what finishes it. Medians, seconds."""
    times: dict[str, list[float]] = {"begin_s": [], "step_s": [], "finish_s": []}
    for _ in range(repeats + 1):
        for name, call in (
            ("begin_s", lambda: engine.begin_state(path)),
            ("step_s", step),
            ("finish_s", engine.finish_state),
        ):
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> int:
    """Measure; the result is the worst model's."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    num_sequences, repeats, sizes = (16, 2, ["tiny"]) if options.quick else (128, 7, ["tiny", "small"])
    with tempfile.TemporaryDirectory() as folder:
        models = {size: measure(Path(folder), size, num_sequences, repeats) for size in sizes}
    result = frame.Result(
        name="resume",
        figure=frame.largest(found["overhead"] for found in models.values()),
        what=f"one checkpoint / {INTERVAL} training steps",
        details={"models": models, "interval": INTERVAL, "sequences": num_sequences},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
