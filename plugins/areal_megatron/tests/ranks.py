"""Run every multi-rank case of the Megatron engine in one start: `ranks.py RANK WORLD FOLDER`.

Writes FOLDER/results-WORLD-RANK.json, and what rank 0 gathered of gradients and weights beside it; the tests read
them. One start, because importing torch on several ranks costs more than all cases together.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.config.backend import parse_backend
from areal_core.contract.errors import ArealError, BatchError
from areal_core.contract.train import ROUTED_EXPERTS, Head, LoraSpec, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.data.batch import Batch
from areal_core.testing.batches import make_batch
from areal_core.testing.memory_weights import MemorySink
from areal_core.testing.objectives import PolicyGradient, ValueRegression
from areal_core.training.layout import coordinates
from areal_core.training.optimizer import local
from areal_core.weights.fingerprint import fingerprint
from areal_megatron.config import MegatronConfig
from areal_megatron.engine import MegatronEngine

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]
ROWS = {1: [list(range(8))], 2: [[0, 3, 4, 7], [1, 2, 5, 6]], 4: [[0, 3], [4, 7], [1, 2], [5, 6]]}
"""Which sequences each data rank takes, by the number of data ranks."""


PLAIN = {
    1: "qwen3/d1 qwen2/d1 llama/d1 moe/d1",
    2: "odd/t2 qwen3/d2 qwen3/t2 qwen3/c2 qwen3/p2 qwen2/t2 qwen2/p2 llama/t2 llama/c2 moe/d2 moe/t2 moe/c2 moe/p2 "
    "moe/d2e2 moe/t2e2 moe/c2e2",
    4: "odd/d2t2 odd/t2p2 qwen3/d2t2 qwen3/d2c2 qwen3/t2c2 qwen3/d2p2 qwen3/t2p2 qwen3/c2p2 qwen2/d2t2 qwen2/c4 "
    "moe/d4e4 moe/d2t2e2 moe/d2t2e4 moe/d2p2e2 moe/t2c2e2",
}
"""By the number of ranks: model and layout of cases without options."""
ROUTED = {1: "d1", 2: "d2 t2 c2 p2 t2e2", 4: "d2p2e2 t2c2e2"}
"""Layouts of cases whose batch tells which experts each token goes through, by the number of ranks."""
AWAY = {1: "qwen3/d1", 2: "qwen3/d2 qwen3/t2 qwen3/p2 moe/d2e2", 4: "moe/d2t2e2"}
"""Models and layouts whose weights leave the device between calls, by the number of ranks."""


@frozen(kw_only=True)
class Case:
    """A model, a layout and options, trained for three steps, if `routed` on drawn routes. Any: options, the spec."""

    model: str
    layout: str
    options: Mapping[str, Any] = {}
    spec: Mapping[str, Any] = {}
    routed: bool = False


def cases(world: int) -> dict[str, Case]:
    """Return the cases of that many ranks, by name."""
    found = {name: Case(model=name.split("/")[0], layout=name.split("/")[1]) for name in PLAIN[world].split()}
    small = {"max_tokens_per_microbatch": 20}
    for layout in ROUTED[world].split():
        found[f"routed/{layout}"] = Case(model="moe", layout=layout, routed=True, spec=small)
    if world == 1:
        found["routed_recomputed"] = Case(
            model="moe", layout="d1", routed=True, options={"activation_checkpointing": "full"}
        )
        found["recomputed"] = Case(model="qwen3", layout="d1", options={"activation_checkpointing": "full"})
        found["selected"] = Case(model="moe", layout="d1", options={"activation_checkpointing": "selective"})
        found["many"] = Case(model="qwen3", layout="d1", spec=small)
    shared = {"distributed_optimizer": True}
    for layout in {1: "d1", 2: "d2 c2", 4: "d2t2 d2p2"}[world].split():
        found[f"odd/shared_{layout}"] = Case(model="odd", layout=layout, options=shared)
    if world > 1:
        layout = {2: "d2e2", 4: "d4e2"}[world]
        found[f"moe/shared_{layout}"] = Case(model="moe", layout=layout, options=shared, spec=small)
    if world == 2:
        found["many_p"] = Case(model="qwen3", layout="p2", spec=small)
        found["many_c"] = Case(model="qwen3", layout="c2", spec=small)
        found["recomputed_p"] = Case(model="moe", layout="p2", options={"activation_checkpointing": "full"}, spec=small)
        found["recomputed_t"] = Case(
            model="qwen3", layout="t2", options={"activation_checkpointing": "full"}, spec=small
        )
        found["recomputed_e"] = Case(
            model="moe", layout="d2e2", options={"activation_checkpointing": "full"}, spec=small
        )
        found["interleaved"] = Case(model="qwen2", layout="p2", options={"virtual": 2})
        found["interleaved_tied"] = Case(model="tied", layout="p2", options={"virtual": 2}, spec=small)
        found["many_interleaved"] = Case(model="qwen2", layout="p2", options={"virtual": 2}, spec=small)
    if world == 4:
        found["interleaved_d"] = Case(model="qwen2", layout="d2p2", options={"virtual": 2}, spec=small)
        found["interleaved_t"] = Case(model="qwen2", layout="t2p2", options={"virtual": 2}, spec=small)
    return found


def full_batch() -> Batch:
    """Return eight sequences with advantages and returns."""
    batch = make_batch(SHAPES)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    return batch.with_tokens(advantages=noise, returns=noise.flip(0))


def routed(batch: Batch) -> Batch:
    """Return the batch with different experts drawn for every token and layer, and none for some tokens."""
    noise = torch.rand(batch.num_tokens, 2, 4, generator=torch.Generator().manual_seed(4))
    routes = noise.argsort(-1)[..., :2].to(torch.int32).contiguous()
    routes[::5] = -1
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


class Runner:
    """One rank: starts engines one after another, each with a rendezvous of its own."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.starts = 0
        self.place: dict[str, int] = {}
        self.layout: dict[str, int] = {}

    def engine(
        self, layout: str, config: MegatronConfig | None = None, *, model: str = "qwen3", **spec: Any
    ) -> MegatronEngine:
        """Start an engine; its place tells which shard `shard` gives."""
        engine = MegatronEngine(config)
        self.layout = dict(parse_backend(f"megatron:{layout}").layout)
        self.place = coordinates(self.layout, self.rank)
        self.starts += 1
        options = {
            "role": "actor",
            "model_path": str(self.folder / model),
            "optimizer": OptimizerSpec(lr=1e-2, weight_decay=0.1),
            "layout": self.layout,
        }
        context = RankContext(
            rank=self.rank,
            world_size=self.world,
            local_rank=self.rank,
            device="cpu",
            init_method=f"file://{self.folder}/store-{self.world}-{self.starts}",
            timeout_s=300,
        )
        engine.start(TrainSpec(**{**options, **spec}), context)
        return engine

    def shard(self, rows: list[list[int]] | None = None, *, recorded: bool = False) -> Batch:
        """Return this rank's share of the full batch."""
        batch = routed(full_batch()) if recorded else full_batch()
        return batch.select((rows or ROWS[self.layout.get("d", 1)])[self.place["d"]])


class Raising(PolicyGradient):
    """An objective that cannot be computed."""

    def loss(self, columns: Any, batch: Batch, normalizer: Tensor) -> Any:
        """Raise; Any: nothing is returned."""
        raise BatchError("this batch cannot be scored")


def report(engine: MegatronEngine, batch: Batch, objective: Any = None) -> dict[str, Any]:
    """Make a step and say what it reported."""
    result = engine.train_step(batch, objective or PolicyGradient())
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "stepped": result.stepped,
        "microbatches": result.num_microbatches,
        "tokens": result.num_tokens,
        "entropy": [result.metrics["entropy"].value, result.metrics["entropy"].weight] if result.metrics else None,
    }


def weights(engine: MegatronEngine, rank: int) -> dict[str, str]:
    """Return the fingerprints of what the engine sends; on rank 0 only."""
    sink = MemorySink() if rank == 0 else None
    engine.send_weights(sink, 1)
    return {name: fingerprint(tensor) for name, tensor in sink.tensors.items()} if sink else {}


def error_of(action: Callable[[], Any]) -> list[str]:
    """Return class and text of the error an action raises."""
    try:
        action()
    except ArealError as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]


def whole_state(folder: Path, kind: str) -> dict[str, Tensor]:
    """Put every tensor of one kind together from the files of all ranks; what nobody wrote is nan."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("rank-*.safetensors")):
        with safe_open(file, framework="pt") as handle:
            for name, (offset, shape) in json.loads(handle.metadata()["boxes"]).items():
                if name.startswith(f"{kind}/"):
                    part = handle.get_tensor(name)
                    whole = found.setdefault(name.removeprefix(f"{kind}/"), torch.full(shape, math.nan))
                    whole[tuple(slice(at, at + size) for at, size in zip(offset, part.shape, strict=True))] = part
    return found


def folder_names(engine: MegatronEngine, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters, or what belongs to them, under the names of a model folder."""
    parts = [parameter.split(tensors[parameter.name]) for parameter in engine._built.weights.parameters]
    return {name: tensor.contiguous() for part in parts for name, tensor in part.items()}


def trained(run: Runner, name: str, case: Case) -> dict[str, Any]:
    """Score, make a step, keep its gradient as the first moment shows it, make two more, export."""
    key = name.replace("/", "-")
    engine = run.engine(case.layout, MegatronConfig(**case.options), model=case.model, **case.spec)
    out: dict[str, Any] = {"model": case.model, "sent": weights(engine, run.rank)}
    out["oracle"] = "routed" if case.routed else case.model
    cut = [each for each in engine._built.held.values() if each.parameter.name.endswith("linear_fc1.weight")]
    out["marked"] = any(hasattr(each.weight, "tensor_model_parallel") for each in cut)
    batch = run.shard(recorded=case.routed)
    scored = engine.forward(batch, frozenset({Output.LOGPROBS, Output.ENTROPY}))
    out["logprobs"], out["entropy"] = (scored.tokens[column].tolist() for column in ("logprobs", "entropy"))
    out["moments"] = sum(each.numel() for each in engine._trainer.optimizer.tensors)
    out["rows"], out["place"] = ROWS[run.layout.get("d", 1)][run.place["d"]], run.place
    out["steps"] = [report(engine, batch)]
    engine.save_state(run.folder / f"state-{run.world}-{key}")
    if run.rank == 0:
        moments = whole_state(run.folder / f"state-{run.world}-{key}", "exp_avg")
        scale = max(1.0, out["steps"][0]["grad_norm"]) / 0.1  # clipped to 1, and beta is 0.9
        gradients = {n: moment * scale for n, moment in folder_names(engine, moments).items()}
        save_file(gradients, run.folder / f"gradients-{run.world}-{key}.safetensors")
    out["steps"] += [report(engine, batch) for _ in range(2)]
    engine.save_weights(run.folder / f"export-{run.world}-{key}")
    engine.close()
    return out


def uneven(run: Runner) -> dict[str, Any]:
    """All sequences on the first data rank: the others take part with nothing."""
    layout = {1: "d1", 2: "d2", 4: "d2t2"}[run.world]
    engine = run.engine(layout, MegatronConfig(), max_tokens_per_microbatch=20)
    batch = run.shard([list(range(8)), []])
    scored = engine.forward(batch, frozenset({Output.LOGPROBS}))
    out = {"steps": [report(engine, batch) for _ in range(3)], "scored": scored.num_tokens}
    engine.close()
    return out


def value_head(run: Runner) -> dict[str, Any]:
    """A critic, on every axis a world of this size has."""
    out: dict[str, Any] = {}
    for layout in {1: ["d1"], 2: ["d2", "t2", "c2", "p2"], 4: ["d2t2", "c2p2"]}[run.world]:
        engine = run.engine(layout, head=Head.VALUE, optimizer=OptimizerSpec(lr=1e-2))
        out[layout] = [report(engine, run.shard(), ValueRegression()) for _ in range(2)]
        engine.save_weights(run.folder / f"critic-{run.world}-{layout}")
        engine.close()
    return out


def half_precision(run: Runner) -> dict[str, Any]:
    """The computation in bfloat16, over masters in float32."""
    out: dict[str, Any] = {}
    for layout in {1: ["d1"], 2: ["d2", "t2", "c2", "p2"], 4: ["d2t2", "t2p2"]}[run.world]:
        engine = run.engine(layout, MegatronConfig(distributed_optimizer=layout in ("d2", "d2t2")), dtype="bfloat16")
        out[layout] = report(engine, run.shard())
        moments = engine._trainer.state.optimizer.moments["exp_avg"]
        out["dtypes"] = sorted({str(moment.dtype) for moment in moments.values()})
        engine.close()
    return out


def away(run: Runner) -> dict[str, Any]:
    """Three steps left alone, and the same moved away and back around each; then a call in between."""
    out: dict[str, Any] = {}
    for name in AWAY[run.world].split():
        model, layout = name.split("/")
        found: list[Any] = []
        for moved in (False, True):
            engine = run.engine(layout, MegatronConfig(), model=model)
            turns = []
            for _ in range(3):
                if moved:
                    engine.offload()
                    engine.offload()
                    engine.onload()
                turns.append(report(engine, run.shard()))
            scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS})).tokens["logprobs"]
            found.append([turns, weights(engine, run.rank), float(scored.double().sum())])
            if not moved:
                engine.close()
        held = _held_bytes(engine)
        engine.offload()
        out[name] = {"equal": found[0] == found[1], "held": held, "left": _held_bytes(engine)}
        out[name]["call"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))  # noqa: B023
        engine.close()
        engine.close()
    return out


def _held_bytes(engine: MegatronEngine) -> int:
    """Return the memory of this rank's weights and moments."""
    trainer = engine._trainer
    tensors = [*trainer.state.parameters.values(), *trainer.optimizer.tensors]
    return sum(local(tensor).untyped_storage().nbytes() for tensor in tensors)


def resume(run: Runner) -> dict[str, Any]:
    """Save, step, go back, step again; then another model's state is refused."""
    layouts = {1: ["qwen3/d1"], 2: ["qwen3/d2", "qwen3/t2", "qwen3/p2", "moe/d2e2"], 4: ["qwen3/d2t2", "moe/d2t2e2"]}
    out: dict[str, Any] = {}
    for name in layouts[run.world]:
        model, layout = name.split("/")
        engine = run.engine(layout, MegatronConfig(), model=model)
        path = run.folder / f"resume-{run.world}-{model}-{layout}"
        report(engine, run.shard())
        engine.version = 7
        engine.save_state(path)
        expected, after = report(engine, run.shard()), weights(engine, run.rank)
        engine.version = 9
        engine.load_state(path)
        actual = report(engine, run.shard())
        out[name] = {
            "expected": expected,
            "actual": actual,
            "same_weights": after == weights(engine, run.rank),
            "version": engine.version,
        }
        engine.close()
    engine = run.engine({1: "d1", 2: "t2", 4: "t2p2"}[run.world], model="qwen2")
    before = weights(engine, run.rank)
    out["other_model"] = error_of(lambda: engine.load_state(path))
    out["unchanged"] = before == weights(engine, run.rank)
    engine.close()
    return out


def reshard(run: Runner) -> dict[str, Any]:
    """Load the state that another world saved in another layout, and go on."""
    sources = {
        1: ["2-qwen3-t2", "4-qwen3-d2t2", "2-odd-t2"],
        2: ["4-qwen3-t2p2", "4-moe-d2t2e2", "4-odd-d2t2", "4-odd-shared_d2p2"],
        4: ["4-qwen3-d2c2"],
    }
    layouts = {1: ["d1", "d1", "d1"], 2: ["p2", "d2e2", "t2", "d2"], 4: ["d2p2"]}
    out: dict[str, Any] = {}
    for source, layout in zip(sources[run.world], layouts[run.world], strict=True):
        model = source.split("-")[1]
        engine = run.engine(layout, MegatronConfig(distributed_optimizer=model == "moe"), model=model)
        engine.load_state(run.folder / f"state-{source}")
        out[f"{source} to {layout}"] = [report(engine, run.shard()) for _ in range(2)]
        engine.close()
    return out


def refusals(run: Runner) -> dict[str, Any]:
    """What goes wrong on the last rank goes wrong on all, and changes nothing."""
    layout = {1: "d1", 2: "d2", 4: "d4"}[run.world]
    engine = run.engine(layout, max_tokens_per_microbatch=20)
    before = weights(engine, run.rank)
    good = run.shard()
    long_batch = make_batch([(20, 12)]).with_tokens(advantages=torch.zeros(32), returns=torch.zeros(32))
    nan = good.with_tokens(advantages=torch.full((good.num_tokens,), float("nan")))
    last = run.rank == run.world - 1
    out: dict[str, Any] = {
        "too_long": error_of(lambda: engine.train_step(long_batch if last else good, PolicyGradient())),
        "wrong_head": error_of(lambda: engine.forward(good, frozenset({Output.VALUES}))),
        "nan": report(engine, nan if last else good)["stepped"],
    }
    sink = MemorySink(spoil=lambda name, tensor: tensor + 1 if name.endswith("norm.weight") else tensor)
    out["spoiled"] = error_of(lambda: engine.send_weights(sink if run.rank == 0 else None, 2))
    out["disk"] = error_of(lambda: engine.save_weights(Path("/proc/nowhere/model")))
    out["unchanged"] = before == weights(engine, run.rank)
    engine.close()
    engine.close()
    if run.world == 2:
        engine = run.engine("p2", max_tokens_per_microbatch=20)
        out["score"] = error_of(lambda: engine.train_step(run.shard(), Raising()))
        out["after_score"] = report(engine, run.shard())
        engine.close()
        engine = run.engine("d2", model="moe")
        good = routed(full_batch()).select(ROWS[2][run.rank])
        unfit = good.tokens[ROUTED_EXPERTS].clone()
        unfit[1, 0] = 9
        bad = good.with_tokens(**{ROUTED_EXPERTS: unfit})
        out["routes"] = error_of(lambda: engine.train_step(bad if last else good, PolicyGradient()))
        engine.close()
        engine = run.engine("d2")
        out["no_experts"] = error_of(lambda: engine.train_step(good, PolicyGradient()))
        engine.close()
        starts: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
            "ranks": ("d2t2", {}, {}),
            "heads": ("t2", {}, {"model": "odd_heads"}),
            "context_heads": ("c2", {}, {"model": "odd_heads"}),
            "layers": ("p2", {}, {"model": "odd_heads"}),
            "virtual_layers": ("p2", {"virtual": 2}, {}),
            "no_pipeline": ("d2", {"virtual": 2}, {}),
            "experts": ("d2e2", {}, {}),
            "too_many_experts": ("d2e4", {}, {}),
            "odd_experts": ("d2e2", {}, {"model": "odd_experts"}),
            "family": ("d2", {}, {"model": "unknown"}),
            "biases": ("d2", {}, {"model": "biased"}),
            "positions": ("d2", {}, {"model": "stretched"}),
            "missing_shard": ("d2", {}, {"model": "torn"}),
            "other_weights": ("d2", {}, {"model": "mixed"}),
            "adapter": ("d2", {}, {"lora": LoraSpec(rank=2, alpha=4.0, targets=("q_proj",))}),
            "no_model": ("d2", {}, {"model": "nowhere" if last else "qwen3"}),
        }
        for name, (where, options, spec) in starts.items():
            out[name] = error_of(lambda: run.engine(where, MegatronConfig(**options), **spec).close())  # noqa: B023
    return out


def frozen_role(run: Runner) -> dict[str, Any]:
    """A reference model: it scores, and refuses to train."""
    engine = run.engine({1: "d1", 2: "p2", 4: "d2t2"}[run.world], optimizer=None)
    scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS}))
    out: dict[str, Any] = {"sum": float(scored.tokens["logprobs"].double().sum()), "place": run.place}
    out["train"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))
    engine.close()
    return out


OTHERS = [frozen_role, uneven, value_head, half_precision, away, resume, reshard, refusals]


def main() -> None:
    """Run everything, or with a fourth argument what its name begins with."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    run = Runner(rank, world, folder)
    results: dict[str, Any] = {}
    for name, case in cases(world).items():
        if name.startswith(only):
            results[name] = trained(run, name, case)
    for action in OTHERS:
        if action.__name__.startswith(only):
            results[action.__name__] = action(run)
    (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
