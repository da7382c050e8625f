"""Seconds per step on a long-tailed batch: the reference engine, packed, against the same model right-padded.

One thread, one batch of 128 sequences, the same loss. The losses of the first step must agree.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import frame
import workload

from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_reference.train.engine import ReferenceTrainEngine


def measure(folder: Path, size: str, num_sequences: int, repeats: int) -> dict[str, Any]:
    """Time both on one model. Any: json."""
    path = workload.make_model(folder, size)
    batch = workload.long_tailed_batch(num_sequences)
    engine = ReferenceTrainEngine()
    spec = TrainSpec(
        role="actor",
        model_path=str(path),
        optimizer=OptimizerSpec(lr=workload.LR, weight_decay=0.0),
        max_tokens_per_microbatch=1 << 20,
    )
    engine.start(spec, RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=""))
    objective = SFTObjective(SFTConfig())
    bare = workload.load_bare(path, packed=False)
    padded_step = workload.bare_step(workload.PaddedLoss(bare), batch, bare.parameters())
    first = {"packed": engine.train_step(batch, objective).loss, "padded": padded_step()}
    if abs(first["packed"] - first["padded"]) > 1e-4 * abs(first["padded"]):
        raise SystemExit(f"the two losses differ: {first}")
    timing = frame.compare(
        {"packed": lambda: engine.train_step(batch, objective), "padded": padded_step}, repeats=repeats
    )
    engine.close()
    longest = int(batch.lengths.max())
    return {
        "figure": frame.Figure.of(timing["padded"].seconds, timing["packed"].seconds),
        "timing": timing,
        "tokens": batch.num_tokens,
        "tokens_with_padding": longest * batch.num_sequences,
        "packed_tokens_per_s": batch.num_tokens / timing["packed"].median,
    }


def main() -> int:
    """Measure both sizes; the result is that of the larger model."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    num_sequences, repeats = (16, 2) if options.quick else (128, 9)
    sizes = ("tiny",) if options.quick else ("tiny", "small")
    with tempfile.TemporaryDirectory() as folder:
        found = {size: measure(Path(folder), size, num_sequences, repeats) for size in sizes}
    result = frame.Result(
        name="packing",
        figure=found[sizes[-1]]["figure"],
        what=f"padded step / packed step, model {sizes[-1]}",
        details={"models": found, "sequences": num_sequences},
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
