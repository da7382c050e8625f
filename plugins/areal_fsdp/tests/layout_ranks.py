"""Train in every layout of so many ranks, in one start: `layout_ranks.py RANK WORLD FOLDER`.

Reads FOLDER/MODEL/ and FOLDER/oracle-MODEL.safetensors, writes FOLDER/layouts-WORLD-RANK.json; `test_layouts.py`
makes the one and reads the other.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen
from ranks import error_of, full_batch, report, weights
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from areal_core.config.backend import parse_backend
from areal_core.contract.batch import Batch
from areal_core.contract.train import Head, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_fsdp.config import FSDPConfig
from areal_fsdp.engine import FSDPEngine, ShardedModel
from areal_torch.model import PackedModel
from areal_torch.optimizer import local
from areal_torch.pieces import box_of
from areal_torch.testing.axes.program import LEFT_S, left_alone
from areal_torch.testing.objectives import ValueRegression
from areal_torch.trainer import Trainer, running

OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=1e-3)
ROWS = {1: [list(range(8))], 2: [[0, 3, 4, 7], [1, 2, 5, 6]], 4: [[0], [3, 4, 7], [], [1, 2, 5, 6]]}
"""Which sequences each data rank takes; of four one has none."""
MICRO = FSDPConfig(wrap="layer", reduce_every_microbatch=False, activation_checkpointing=True)
COMPILED = FSDPConfig(wrap="layer", compile=True, compile_backend="aot_eager")


@frozen(kw_only=True)
class Case:
    """One layout, one model, one way to train it."""

    layout: str
    model: str = "qwen3"
    config: FSDPConfig = FSDPConfig()
    max_tokens: int = 16384


CASES: Mapping[int, Mapping[str, Case]] = {
    2: {
        "t2": Case(layout="t2"),
        "c2": Case(layout="c2"),
        "t2 in pieces": Case(layout="t2", config=MICRO, max_tokens=15),
        "c2 in pieces": Case(layout="c2", config=MICRO, max_tokens=15),
        "t2 layer by layer": Case(layout="t2", config=FSDPConfig(wrap="layer"), max_tokens=20),
        "replicas": Case(layout="d2", config=FSDPConfig(wrap="layer", replicas=2), max_tokens=20),
        "odd t2": Case(layout="t2", model="odd"),
        "odd t2 in pieces": Case(layout="t2", model="odd", config=MICRO, max_tokens=15),
        "biases t2": Case(layout="t2", model="biases"),
        "qwen2 t2": Case(layout="t2", model="qwen2"),
        "granite t2": Case(layout="t2", model="granite"),
        "experts d2": Case(layout="d2", model="experts"),
        "experts c2": Case(layout="c2", model="experts"),
        "experts t2": Case(layout="t2", model="experts"),
        "experts t2 in pieces": Case(layout="t2", model="experts", config=MICRO, max_tokens=15),
        "compiled d2": Case(layout="d2", config=COMPILED, max_tokens=20),
        "compiled c2": Case(layout="c2", config=evolve(COMPILED, activation_checkpointing=True), max_tokens=20),
    },
    4: {
        "d2t2": Case(layout="d2t2"),
        "d2c2": Case(layout="d2c2"),
        "c2t2": Case(layout="c2t2"),
        "c4": Case(layout="c4"),
        "d2t2 in pieces": Case(layout="d2t2", config=MICRO, max_tokens=15),
        "odd d2t2": Case(layout="d2t2", model="odd"),
        "c2t2 in pieces": Case(layout="c2t2", config=MICRO, max_tokens=15),
        "replicas of halves": Case(layout="d4", config=FSDPConfig(wrap="layer", replicas=2), max_tokens=20),
        "replicas in pieces": Case(layout="d4", config=evolve(MICRO, replicas=2), max_tokens=15),
        "replicas d2t2": Case(layout="d2t2", config=FSDPConfig(replicas=2)),
        "replicas d2c2": Case(layout="d2c2", config=FSDPConfig(replicas=2)),
        "experts d2t2": Case(layout="d2t2", model="experts"),
    },
}
RELAYS = {1: ["d1"], 2: ["d2", "t2", "c2"], 4: ["d2t2", "c2t2", "d4"]}


class Runner:
    """One rank: starts engines one after another, each with a rendezvous of its own."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.starts = 0

    def engine(self, case: Case, timeout_s: float = 60.0, **spec: Any) -> FSDPEngine:
        engine = FSDPEngine(case.config)
        self.starts += 1
        options = {
            "role": "actor",
            "model_path": str(self.folder / case.model),
            "optimizer": OPTIMIZER,
            "layout": dict(parse_backend(f"fsdp:{case.layout}").layout),
            "max_tokens_per_microbatch": case.max_tokens,
        }
        context = RankContext(
            rank=self.rank,
            world_size=self.world,
            local_rank=self.rank,
            device="cpu",
            init_method=f"file://{self.folder}/store-{self.world}-{self.starts}",
            timeout_s=timeout_s,
        )
        self.info = engine.start(TrainSpec(**{**options, **spec}), context)
        return engine

    def shard(self) -> Batch:
        """Return the share of the full batch that the engine asked for last."""
        return full_batch().select(ROWS[self.info.data_size][self.info.data_rank])


def train(run: Runner, case: Case) -> dict[str, Any]:
    """Three steps; the first moments after one tell every gradient."""
    if case.config.compile:
        warnings.simplefilter("ignore")  # dynamo looks at attributes that warn when looked at
    engine = run.engine(case)
    batch = run.shard()
    trainer = running(engine.trainer)
    steps = [report(engine, batch)]
    oracle = load_file(run.folder / f"oracle-{case.model}.safetensors")
    out = {"moments": gaps(trainer, trainer.optimizer.moments["exp_avg"], oracle, "exp_avg")}
    steps += [report(engine, batch), report(engine, batch)]
    held = {name: local(parameter) for name, parameter in trainer.state.parameters.items()}
    out |= {"steps": steps, "weights": gaps(trainer, held, oracle, "weights"), "copies": copies(trainer)}
    scored = engine.forward(batch, frozenset({Output.LOGPROBS}))
    out["scored"] = float(scored.tokens["logprobs"].double().sum())
    out["exported"] = weights(engine)
    engine.close()
    return out


def gaps(trainer: Trainer, held: Mapping[str, Tensor], oracle: Mapping[str, Tensor], kind: str) -> dict[str, float]:
    """Return how far this rank's part of each tensor is from the plain loop's, against the largest entry of it."""
    found = {}
    for name, parameter in trainer.state.parameters.items():
        whole, part = oracle[f"{kind}/{name}"], held[name]
        box = box_of(parameter)
        assert box.shape == tuple(whole.shape), name
        own = whole[tuple(slice(at, at + size) for at, size in zip(box.offset, part.shape, strict=True))]
        found[name] = float((own - part).abs().max() / whole.abs().max()) if part.numel() else 0.0
    return found


def copies(trainer: Trainer) -> bool:
    """Return whether ranks that hold the same part of a tensor hold the same bits."""
    held = {}
    for name, parameter in trainer.state.parameters.items():
        part = local(parameter)
        held[name] = [list(box_of(parameter).offset), fingerprint(part) if part.numel() else ""]
    seen: dict[str, str] = {}
    return all(
        seen.setdefault(f"{name} {offset}", bits) == bits
        for answer in trainer.group.gather(held)
        for name, (offset, bits) in answer.items()
        if bits
    )


def values(run: Runner, layout: str) -> dict[str, Any]:
    """A critic: two steps, and its folder."""
    engine = run.engine(Case(layout=layout), head=Head.VALUE)
    out = {"steps": [report(engine, run.shard(), ValueRegression()) for _ in range(2)]}
    engine.save_weights(run.folder / f"critic-{layout}")
    engine.close()
    return out


def halves(run: Runner, layout: str) -> dict[str, Any]:
    """bfloat16 layers."""
    engine = run.engine(Case(layout=layout), dtype="bfloat16")
    out = {"steps": [report(engine, run.shard())]}
    engine.close()
    return out


def relay(run: Runner) -> dict[str, Any]:
    """Go on from the state that the layout before has left, one step each; the first goes on from one rank's."""
    out = {}
    for layout in RELAYS[run.world]:
        engine = run.engine(Case(layout=layout, model="odd"))
        saved = run.folder / "relay"
        if saved.exists():
            engine.load_state(saved)
        out[layout] = {"before": weights(engine), "step": report(engine, run.shard()), "after": weights(engine)}
        engine.save_state(saved)
        engine.close()
    return out


def frozen_role(run: Runner) -> dict[str, Any]:
    """A reference model without gradients scores in every layout; DTensors without gradient are another path."""
    out = {}
    for layout in RELAYS[run.world]:
        engine = run.engine(Case(layout=layout), optimizer=None)
        scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS, Output.ENTROPY}))
        out[layout] = [float(scored.tokens[name].double().sum()) for name in ("logprobs", "entropy")]
        out[layout].append(float(run.info.data_rank))
        engine.close()
    return out


def cut(run: Runner) -> dict[str, Any]:
    """What t2 leaves on a rank: half of each matrix, whole norms, everything on one mesh."""
    engine = run.engine(Case(layout="t2"))
    trainer = running(engine.trainer)
    assert isinstance(trainer.model, ShardedModel) and isinstance(trainer.model.root, PackedModel)
    parameters, buffers = trainer.state.parameters, dict(trainer.model.root.hf.named_buffers())
    assert all(isinstance(parameter, DTensor) for parameter in parameters.values())
    out = {
        "shapes": {
            name: [list(parameter.shape), list(local(parameter).shape)] for name, parameter in parameters.items()
        },
        "meshes": sorted({str(parameter.device_mesh.mesh_dim_names) for parameter in parameters.values()}),
        "rotary": buffers["model.rotary_emb.inv_freq"].tolist(),
    }
    engine.close()
    return out


def left(run: Runner) -> dict[str, Any]:
    """The last rank raises in the middle of a step, and the others wait for it on the mesh."""
    out = {}
    for layout in {1: [], 2: ["t2", "c2"], 4: ["d2t2", "d2c2"]}[run.world]:
        engine = run.engine(Case(layout=layout), LEFT_S)
        out[layout] = left_alone(engine, run.shard(), raises=run.rank == run.world - 1)
        engine.close()
    return out


def refusals(run: Runner) -> dict[str, Any]:
    """Layouts that do not fit, told on every rank before weights are read."""
    cases = {
        "no plan": Case(layout="t2", model="gpt2"),
        "heads c": Case(layout="c2", model="three"),
        "heads t": Case(layout="t2", model="three"),
        "replicas": Case(layout="d2", config=FSDPConfig(replicas=3)),
        "pipeline": Case(layout="d1p2"),
        "compiled": Case(layout="t2", config=COMPILED),
    }
    return {name: error_of(lambda case=case: run.engine(case)) for name, case in cases.items()}


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4:]
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    run = Runner(rank, world, folder)
    programs: dict[str, Any] = {name: lambda case=case: train(run, case) for name, case in CASES.get(world, {}).items()}
    if world == 2:
        for layout in ("t2", "c2"):
            programs[f"values {layout}"] = lambda layout=layout: values(run, layout)
            programs[f"halves {layout}"] = lambda layout=layout: halves(run, layout)
        programs |= {"cut": lambda: cut(run), "refusals": lambda: refusals(run)}
    programs |= {"frozen": lambda: frozen_role(run), "relay": lambda: relay(run), "left": lambda: left(run)}
    results = {}
    for name, program in programs.items():
        if only and name not in only:
            continue
        print(name, flush=True)
        with warnings.catch_warnings():
            results[name] = program()
        (folder / f"layouts-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
