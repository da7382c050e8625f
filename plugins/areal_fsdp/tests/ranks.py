"""Run every multi-rank case of the FSDP engine in one start: `ranks.py RANK WORLD FOLDER`.

Writes FOLDER/results-WORLD-RANK.json; the tests read it. One start, because importing
transformers on several ranks costs more than all cases together.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError
from areal_core.contract.train import Head, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_fsdp.config import FSDPConfig
from areal_fsdp.engine import FSDPEngine
from areal_torch.testing.batches import make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient, ValueRegression
from areal_torch.trainer import running

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]


def full_batch() -> Batch:
    """Return eight sequences with advantages and returns."""
    batch = make_batch(SHAPES)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    return batch.with_tokens(advantages=noise, returns=noise.flip(0))


def shard_of(rows: list[list[int]], rank: int) -> Batch:
    """Return one rank's share of the full batch."""
    return full_batch().select(rows[rank])


class Runner:
    """One rank: starts engines one after another, each with a rendezvous of its own."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.starts = 0

    def engine(self, config: FSDPConfig | None = None, **spec: Any) -> FSDPEngine:
        engine = FSDPEngine(config)
        self.starts += 1
        store = self.folder / f"store-{self.world}-{self.starts}"
        options = {
            "role": "actor",
            "model_path": str(self.folder / "model"),
            "optimizer": OptimizerSpec(lr=1e-2, weight_decay=0.1),
            "layout": {"d": self.world},
        }
        engine.start(
            TrainSpec(**{**options, **spec}),
            RankContext(
                rank=self.rank,
                world_size=self.world,
                local_rank=self.rank,
                device="cpu",
                init_method=f"file://{store}",
                timeout_s=60,
            ),
        )
        return engine

    def shard(self, rows: list[list[int]] | None = None) -> Batch:
        halves = [[0, 3, 4, 7], [1, 2, 5, 6]] if self.world == 2 else [list(range(8))]
        return shard_of(rows or halves, self.rank)


def report(engine: FSDPEngine, batch: Batch, objective: Any = None) -> dict[str, Any]:
    result = engine.train_step(batch, objective or PolicyGradient())
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "stepped": result.stepped,
        "microbatches": result.num_microbatches,
        "tokens": result.num_tokens,
        "entropy": [result.metrics["entropy"].value, result.metrics["entropy"].weight] if result.metrics else None,
    }


def weights(engine: FSDPEngine) -> dict[str, str]:
    sink = MemorySink() if running(engine.trainer).group.rank == 0 else None
    engine.send_weights(sink, 1)
    return {name: fingerprint(tensor) for name, tensor in sink.tensors.items()} if sink else {}


def error_of(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except ArealError as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]


def steps(run: Runner) -> dict[str, Any]:
    """Three steps, then export; the tests compare with one rank."""
    engine = run.engine()
    out = {"steps": [report(engine, run.shard()) for _ in range(3)]}
    engine.save_weights(run.folder / f"export-{run.world}")
    engine.close()
    return out


def microbatched(run: Runner) -> dict[str, Any]:
    """The same steps in many micro-batches, layers wrapped, gradients reduced once, activations recomputed."""
    config = FSDPConfig(wrap="layer", reduce_every_microbatch=False, activation_checkpointing=True)
    engine = run.engine(config, max_tokens_per_microbatch=15)
    out = {"steps": [report(engine, run.shard()) for _ in range(3)]}
    engine.close()
    return out


def uneven(run: Runner) -> dict[str, Any]:
    """All sequences on the first rank: the others take part with nothing."""
    engine = run.engine(FSDPConfig(wrap="layer"), max_tokens_per_microbatch=20)
    batch = run.shard([list(range(8)), []][: run.world])
    scored = engine.forward(batch, frozenset({Output.LOGPROBS}))
    out = {"steps": [report(engine, batch) for _ in range(3)], "scored": scored.num_tokens}
    engine.close()
    return out


def value_head(run: Runner) -> dict[str, Any]:
    engine = run.engine(head=Head.VALUE, optimizer=OptimizerSpec(lr=1e-2))
    out = {"steps": [report(engine, run.shard(), ValueRegression()) for _ in range(2)]}
    engine.save_weights(run.folder / f"critic-{run.world}")
    engine.close()
    return out


def half_precision(run: Runner) -> dict[str, Any]:
    engine = run.engine(FSDPConfig(wrap="layer"), dtype="bfloat16")
    out: dict[str, Any] = {"steps": [report(engine, run.shard())]}
    out["local_dtype"] = str(next(iter(running(engine.trainer).state.optimizer.moments["exp_avg"].values())).dtype)
    out["sent"] = weights(engine)
    engine.close()
    return out


def resume(run: Runner) -> dict[str, Any]:
    """Save after one step; a second engine loads and must make the same second step, bit for bit."""
    first = run.engine()
    first.version = 7
    report(first, run.shard())
    first.save_state(run.folder / f"state-{run.world}")
    expected = report(first, run.shard())
    after = weights(first)
    first.close()
    second = run.engine(FSDPConfig(wrap="layer"))
    second.load_state(run.folder / f"state-{run.world}")
    out = {"version": second.version, "expected": expected, "actual": report(second, run.shard())}
    out["same_weights"] = after == weights(second)
    out["other_model"] = error_of(lambda: second.load_state(run.folder / "nowhere"))
    second.close()
    return out


def reshard(run: Runner) -> dict[str, Any]:
    """Load what two ranks saved; one rank and two ranks must hold the same weights and moments."""
    saved = run.folder / "state-2"
    if not saved.exists():
        return {}
    engine = run.engine()
    engine.load_state(saved)
    out = {"weights": weights(engine), "next": report(engine, run.shard())}
    engine.close()
    return out


def refusals(run: Runner) -> dict[str, Any]:
    """Errors on one rank are errors on all, and nobody hangs."""
    engine = run.engine(max_tokens_per_microbatch=20)
    before = weights(engine)
    good = run.shard()
    long_batch = make_batch([(2, 30)]).with_tokens(advantages=torch.zeros(32), returns=torch.zeros(32))
    nan = good.with_tokens(advantages=torch.full((good.num_tokens,), float("nan")))
    masked = good.with_tokens(loss_mask=torch.zeros(good.num_tokens, dtype=torch.bool))
    last = run.rank == run.world - 1
    out: dict[str, Any] = {
        "too_long": error_of(lambda: engine.train_step(long_batch if last else good, PolicyGradient())),
        "too_long_forward": error_of(
            lambda: engine.forward(long_batch if last else good, frozenset({Output.LOGPROBS}))
        ),
        "nothing": error_of(lambda: engine.train_step(masked, PolicyGradient())),
        "wrong_head": error_of(lambda: engine.forward(good, frozenset({Output.VALUES}))),
        "nan": report(engine, nan if last else good)["stepped"],
    }
    sink = MemorySink(spoil=lambda name, tensor: tensor + 1 if name.endswith("norm.weight") else tensor)
    out["spoiled"] = error_of(lambda: engine.send_weights(sink if run.rank == 0 else None, 2))
    out["aborted"] = sink.aborted
    out["disk"] = error_of(lambda: engine.save_weights(Path("/proc/nowhere/model")))
    out["unchanged"] = before == weights(engine)
    out["steps"] = [report(engine, good)]
    engine.close()
    engine.close()
    bad = FSDPEngine()
    spec = TrainSpec(role="actor", model_path=str(run.folder / "model"), layout={"d": 1, "p": run.world + 1})
    context = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="unused")
    out["layout"] = error_of(lambda: bad.start(spec, context))
    return out


def frozen(run: Runner) -> dict[str, Any]:
    """A reference model: it scores, and refuses to train."""
    engine = run.engine(FSDPConfig(wrap="layer"), optimizer=None)
    scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS}))
    out = {"sum": float(scored.tokens["logprobs"].double().sum())}
    out["train"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))
    engine.close()
    return out


CASES = [frozen, steps, microbatched, uneven, value_head, half_precision, resume, reshard, refusals]


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    run = Runner(rank, world, folder)
    results = {}
    for case in CASES:
        results[case.__name__] = case(run)
    (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
