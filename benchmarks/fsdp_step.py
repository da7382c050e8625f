"""Seconds per step of the FSDP engine, against the same model in a bare PyTorch FSDP2 loop, packed alike.

Both live in one process per rank and take turns. With one rank and with two; a model of 4 million parameters
and the quickstart's of 76 thousand. One thread per rank. `--rank` is for the processes this script starts itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import frame
import torch
import workload
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from areal_core.algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_fsdp.engine import FSDPEngine

TIMEOUT_S = 900
NUM_SEQUENCES = 128


def one_rank(folder: Path, size: str, rank: int, world: int, repeats: int) -> dict[str, Any]:
    """Time engine and bare loop in turns on this rank's share of the batch. Any: json."""
    path = folder / size
    batch = workload.by_length(workload.long_tailed_batch(NUM_SEQUENCES // world, seed=1 + rank))
    engine = FSDPEngine()
    spec = TrainSpec(
        role="actor",
        model_path=str(path),
        optimizer=OptimizerSpec(lr=workload.LR, weight_decay=0.0),
        layout={"d": world},
        max_tokens_per_microbatch=1 << 20,
    )
    store = f"file://{folder}/store-{size}-{world}"
    engine.start(spec, RankContext(rank=rank, world_size=world, local_rank=rank, device="cpu", init_method=store))
    loss = workload.PackedLoss(workload.load_bare(path, packed=True))
    mesh = init_device_mesh("cpu", (world,))
    if world > 1:
        fully_shard(loss, mesh=mesh)
    bare_step = workload.bare_step(loss, batch, loss.parameters())
    objective = SFTObjective(SFTConfig())
    losses = {"engine": engine.train_step(batch, objective).loss, "bare": bare_step()}
    timing = frame.compare({"engine": lambda: engine.train_step(batch, objective), "bare": bare_step}, repeats=repeats)
    engine.close()
    return {
        "ratio": timing["bare"].median / timing["engine"].median,
        "engine_s": timing["engine"].median,
        "bare_s": timing["bare"].median,
        "engine_fastest_s": timing["engine"].fastest,
        "bare_fastest_s": timing["bare"].fastest,
        "losses": losses,
        "tokens": batch.num_tokens,
    }


def all_ranks(folder: Path, size: str, world: int, repeats: int) -> dict[str, Any]:
    """Start the ranks, wait, and return what rank 0 found. Any: json."""
    if not (folder / size).exists():
        workload.make_model(folder, size)
    arguments = [str(folder), size, str(world), str(repeats)]
    command = [sys.executable, __file__, "--rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"a rank failed with {[process.returncode for process in ranks]}")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> int:
    """Measure every model with every number of ranks; the result is the worst ratio of the larger model."""
    parser = frame.parser(__doc__)
    parser.add_argument("--rank", nargs=5, metavar=("RANK", "FOLDER", "SIZE", "WORLD", "REPEATS"))
    options = parser.parse_args()
    frame.one_thread()
    if options.rank:
        rank, folder, size, world, repeats = options.rank
        found = one_rank(Path(folder), size, int(rank), int(world), int(repeats))
        print(json.dumps(found), flush=True)
        os._exit(0)  # gloo's threads sometimes abort an orderly exit
    repeats = 2 if options.quick else 15
    sizes = ("tiny",) if options.quick else ("tiny", "small")
    with tempfile.TemporaryDirectory() as scratch:
        models = {
            size: {f"{world} ranks": all_ranks(Path(scratch), size, world, repeats) for world in (1, 2)}
            for size in sizes
        }
    result = frame.Result(
        name="fsdp_step",
        ratio=min(found["ratio"] for found in models[sizes[-1]].values()),
        target=0.95,
        what=f"bare step / engine step, model {sizes[-1]}, worst of 1 and 2 ranks",
        details={"models": models, "sequences": NUM_SEQUENCES, "torch_threads": torch.get_num_threads()},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
