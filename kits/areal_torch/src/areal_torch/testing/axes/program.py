"""What every rank of an engine with several axes runs, in one start: trained cases, and all that can go wrong.

Writes FOLDER/results-WORLD-RANK.json, and what rank 0 gathered of gradients and weights beside it; `claims` reads
them. One start, because importing torch on several ranks costs more than all cases together.

    PLAN = Plan(name="mine", make=lambda options: MyEngine(MyConfig(**options)), cases=cases, ...)
    main(PLAN)          # python ranks.py RANK WORLD FOLDER [BEGINNING-OF-A-NAME]

Knows: the contract; that an engine keeps a `Trainer` in `trainer` and its weights in `built.weights`.
Does not know: engines, or what is right.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import field, frozen
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.config.backend import parse_backend
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, BatchError
from areal_core.contract.train import ROUTED_EXPERTS, Head, Objective, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_torch.layout import coordinates
from areal_torch.optimizer import local
from areal_torch.testing.axes.oracle import EPS, full_batch, routed
from areal_torch.testing.batches import make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

Engine = Any  # any class of the contract's TrainEngine, whose privates are read
Options = Mapping[str, Any]  # Any: the engine's own
Results = dict[str, Any]  # Any: json

OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=EPS)
SMALL: Mapping[str, Any] = {"max_tokens_per_microbatch": 20}
"""Fields of a TrainSpec that cut the batch into several micro-batches."""
ROWS = {1: [list(range(8))], 2: [[0, 3, 4, 7], [1, 2, 5, 6]], 4: [[0, 3], [4, 7], [1, 2], [5, 6]]}
"""Which sequences each data rank takes, by the number of data ranks."""
LEFT_S = 10.0
"""The timeout of groups in which ranks are left waiting."""


@frozen(kw_only=True)
class Case:
    """A model, a layout and options, trained for three steps, if `routed` on drawn routes. Any: fields of the spec."""

    model: str
    layout: str
    options: Options = field(factory=dict)
    spec: Mapping[str, Any] = field(factory=dict)
    routed: bool = False


@frozen(kw_only=True)
class Plan:
    """What is done with one engine."""

    name: str
    """Of the backend."""
    make: Callable[[Options], Engine]
    cases: Mapping[int, Mapping[str, Case]]
    """By the number of ranks, by name. There must be qwen3/d1 on one and qwen3/t2p2 on four."""
    options: Options = field(factory=dict)
    """For what is no case."""
    halves: Mapping[str, Options] = field(factory=dict)
    """Layout -> options of the computation in bfloat16."""
    away: Mapping[int, str]
    """Models and layouts whose weights leave the device between calls, by the number of ranks."""
    reshards: Mapping[int, Sequence[tuple[str, str, Options]]]
    """By the number of ranks: the name of a state that others left, the layout that loads it, options."""
    refused: Mapping[str, tuple[str, Options, Mapping[str, Any]]]
    """Starts that cannot be, on two ranks: layout, options, fields of the spec and the model."""
    note: Callable[[Engine], Results] = lambda engine: {}
    """What else is told of the engine of a case."""
    others: Sequence[Callable[[Runner], Results]] = ()
    """What else is done, told under the function's name."""


class Raising(PolicyGradient):
    """An objective that cannot be computed."""

    def loss(self, columns: Any, batch: Batch, normalizer: Tensor) -> Any:
        """Raise; Any: nothing is returned."""
        raise BatchError("this batch cannot be scored")


def plain(names: str) -> dict[str, Case]:
    """Return cases without options. Example: plain("qwen3/d2 moe/d2e2")"""
    return {name: Case(model=name.split("/")[0], layout=name.split("/")[1]) for name in names.split()}


def on_drawn_routes(
    layouts: str, *, options: Options | None = None, spec: Mapping[str, Any] = SMALL
) -> dict[str, Case]:
    """Return cases of a mixture whose batch tells which experts each token goes through."""
    return {
        f"routed/{layout}": Case(model="moe", layout=layout, routed=True, options=options or {}, spec=spec)
        for layout in layouts.split()
    }


class Runner:
    """One rank: starts engines one after another, each with a rendezvous of its own."""

    def __init__(self, plan: Plan, rank: int, world: int, folder: Path) -> None:
        """Start nothing yet."""
        self.plan, self.rank, self.world, self.folder = plan, rank, world, folder
        self.starts = 0
        self.place: dict[str, int] = {}
        self.layout: dict[str, int] = {}

    def engine(
        self,
        layout: str,
        options: Options | None = None,
        *,
        model: str = "qwen3",
        timeout_s: float = 300.0,
        **spec: Any,
    ) -> Engine:
        """Start an engine; its place tells which shard `shard` gives. Any: fields of the spec."""
        engine = self.plan.make(self.plan.options if options is None else options)
        self.layout = dict(parse_backend(f"{self.plan.name}:{layout}").layout)
        self.place = coordinates(self.layout, self.rank)
        self.starts += 1
        fields: dict[str, Any] = {
            "role": "actor",
            "model_path": str(self.folder / model),
            "optimizer": OPTIMIZER,
            "layout": self.layout,
        }
        context = RankContext(
            rank=self.rank,
            world_size=self.world,
            local_rank=self.rank,
            device="cpu",
            init_method=f"file://{self.folder}/store-{self.world}-{self.starts}",
            timeout_s=timeout_s,
        )
        engine.start(TrainSpec(**{**fields, **spec}), context)
        return engine

    def shard(self, rows: list[list[int]] | None = None, *, recorded: bool = False) -> Batch:
        """Return this rank's share of the full batch."""
        batch = routed(full_batch()) if recorded else full_batch()
        return batch.select((rows or ROWS[self.layout.get("d", 1)])[self.place["d"]])


def report(engine: Engine, batch: Batch, objective: Objective | None = None) -> Results:
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


def error_of(action: Callable[[], object]) -> list[str]:
    """Return class and text of the error an action raises."""
    try:
        action()
    except ArealError as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]


def _sent(engine: Engine, rank: int) -> dict[str, str]:
    """Return the fingerprints of what the engine sends; on rank 0 only."""
    sink = MemorySink() if rank == 0 else None
    engine.send_weights(sink, 1)
    return {name: fingerprint(tensor) for name, tensor in sink.tensors.items()} if sink else {}


def _whole_state(folder: Path, kind: str) -> dict[str, Tensor]:
    """Put every tensor of one kind together from the files of all ranks; what nobody wrote is nan."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("rank-*.safetensors")):
        handle: Any  # safetensors is not typed
        with safe_open(file, framework="pt") as handle:
            for name, (offset, shape) in json.loads(handle.metadata()["boxes"]).items():
                if name.startswith(f"{kind}/"):
                    part = handle.get_tensor(name)
                    whole = found.setdefault(name.removeprefix(f"{kind}/"), torch.full(shape, math.nan))
                    whole[tuple(slice(at, at + size) for at, size in zip(offset, part.shape, strict=True))] = part
    return found


def _folder_names(engine: Engine, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters, or what belongs to them, under the names of a model folder."""
    parts = [parameter.split(tensors[parameter.name]) for parameter in engine.built.weights.parameters]
    return {name: tensor.contiguous() for part in parts for name, tensor in part.items()}


def _held_bytes(engine: Engine) -> int:
    """Return the memory of this rank's weights and moments."""
    trainer = engine.trainer
    tensors = [*trainer.state.parameters.values(), *trainer.optimizer.tensors]
    return sum(local(tensor).untyped_storage().nbytes() for tensor in tensors)


def trained(run: Runner, name: str, case: Case) -> Results:
    """Score, make a step, keep its gradient as the first moment shows it, make two more, export."""
    key = name.replace("/", "-")
    engine = run.engine(case.layout, case.options, model=case.model, **case.spec)
    out: Results = {"model": case.model, "oracle": "routed" if case.routed else case.model}
    out["sent"] = _sent(engine, run.rank)
    batch = run.shard(recorded=case.routed)
    scored = engine.forward(batch, frozenset({Output.LOGPROBS, Output.ENTROPY}))
    out["logprobs"], out["entropy"] = (scored.tokens[column].tolist() for column in ("logprobs", "entropy"))
    out["rows"], out["place"] = ROWS[run.layout.get("d", 1)][run.place["d"]], run.place
    out |= run.plan.note(engine)
    out["steps"] = [report(engine, batch)]
    engine.save_state(run.folder / f"state-{run.world}-{key}")
    if run.rank == 0:
        moments = _whole_state(run.folder / f"state-{run.world}-{key}", "exp_avg")
        scale = max(1.0, out["steps"][0]["grad_norm"]) / 0.1  # clipped to 1, and beta is 0.9
        gradients = {n: moment * scale for n, moment in _folder_names(engine, moments).items()}
        save_file(gradients, run.folder / f"gradients-{run.world}-{key}.safetensors")
    out["steps"] += [report(engine, batch) for _ in range(2)]
    engine.save_weights(run.folder / f"export-{run.world}-{key}")
    engine.close()
    return out


def frozen_role(run: Runner) -> Results:
    """A reference model: it scores, and refuses to train."""
    engine = run.engine({1: "d1", 2: "p2", 4: "d2t2"}[run.world], optimizer=None)
    scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS}))
    out: Results = {"sum": float(scored.tokens["logprobs"].double().sum()), "place": run.place}
    out["train"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))
    engine.close()
    return out


def uneven(run: Runner) -> Results:
    """All sequences on the first data rank: the others take part with nothing."""
    engine = run.engine({1: "d1", 2: "d2", 4: "d2t2"}[run.world], **SMALL)
    batch = run.shard([list(range(8)), []])
    scored = engine.forward(batch, frozenset({Output.LOGPROBS}))
    out = {"steps": [report(engine, batch) for _ in range(3)], "scored": scored.num_tokens}
    engine.close()
    return out


def value_head(run: Runner) -> Results:
    """A critic, on every axis a world of this size has."""
    out: Results = {}
    for layout in {1: ["d1"], 2: ["d2", "t2", "c2", "p2"], 4: ["d2t2", "c2p2"]}[run.world]:
        engine = run.engine(layout, head=Head.VALUE)
        out[layout] = [report(engine, run.shard(), ValueRegression()) for _ in range(2)]
        engine.save_weights(run.folder / f"critic-{run.world}-{layout}")
        engine.close()
    return out


def half_precision(run: Runner) -> Results:
    """The computation in bfloat16, over masters in float32."""
    out: Results = {}
    for layout in {1: ["d1"], 2: ["d2", "t2", "c2", "p2"], 4: ["d2t2", "t2p2"]}[run.world]:
        engine = run.engine(layout, run.plan.halves.get(layout), dtype="bfloat16")
        out[layout] = report(engine, run.shard())
        moments = engine.trainer.state.optimizer.moments["exp_avg"]
        out["dtypes"] = sorted({str(moment.dtype) for moment in moments.values()})
        engine.close()
    return out


def away(run: Runner) -> Results:
    """Three steps left alone, and the same moved away and back around each; then a call in between."""
    out: Results = {}
    for name in run.plan.away[run.world].split():
        model, layout = name.split("/")
        found: list[Any] = []
        for moved in (False, True):
            engine = run.engine(layout, model=model)
            turns = []
            for _ in range(3):
                if moved:
                    engine.offload()
                    engine.offload()
                    engine.onload()
                turns.append(report(engine, run.shard()))
            scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS})).tokens["logprobs"]
            found.append([turns, _sent(engine, run.rank), float(scored.double().sum())])
            if not moved:
                engine.close()
        held = _held_bytes(engine)
        engine.offload()
        out[name] = {"equal": found[0] == found[1], "held": held, "left": _held_bytes(engine)}
        out[name]["call"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))  # noqa: B023
        engine.close()
        engine.close()
    return out


def resume(run: Runner) -> Results:
    """Save, step, go back, step again; then another model's state is refused."""
    layouts = {1: ["qwen3/d1"], 2: ["qwen3/d2", "qwen3/t2", "qwen3/p2", "moe/d2e2"], 4: ["qwen3/d2t2", "moe/d2t2e2"]}
    out: Results = {}
    for name in layouts[run.world]:
        model, layout = name.split("/")
        engine = run.engine(layout, model=model)
        path = run.folder / f"resume-{run.world}-{model}-{layout}"
        report(engine, run.shard())
        engine.version = 7
        engine.save_state(path)
        expected, after = report(engine, run.shard()), _sent(engine, run.rank)
        engine.version = 9
        engine.load_state(path)
        out[name] = {"expected": expected, "actual": report(engine, run.shard())}
        out[name] |= {"same_weights": after == _sent(engine, run.rank), "version": engine.version}
        engine.close()
    engine = run.engine({1: "d1", 2: "t2", 4: "t2p2"}[run.world], model="qwen2")
    before = _sent(engine, run.rank)
    out["other_model"] = error_of(lambda: engine.load_state(path))
    out["unchanged"] = before == _sent(engine, run.rank)
    engine.close()
    return out


def reshard(run: Runner) -> Results:
    """Load the state that another world saved in another layout, and go on."""
    out: Results = {}
    for source, layout, options in run.plan.reshards[run.world]:
        engine = run.engine(layout, options, model=source.split("-")[1])
        engine.load_state(run.folder / f"state-{source}")
        out[f"{source} to {layout}"] = [report(engine, run.shard()) for _ in range(2)]
        engine.close()
    return out


def left(run: Runner) -> Results:
    """The last rank raises in the middle of a step, alone: the others wait for it in whatever collective comes next."""
    out: Results = {}
    for layout in {1: [], 2: ["d2", "t2", "c2"], 4: ["d2t2"]}[run.world]:
        engine = run.engine(layout, timeout_s=LEFT_S)
        out[layout] = left_alone(engine, run.shard(), raises=run.rank == run.world - 1)
        engine.close()
    return out


def left_alone(engine: Engine, batch: Batch, *, raises: bool) -> Results:
    """Make a step in which one rank raises; tell how it ended here, and when. Nobody is gone before all have ended."""
    patience = timedelta(seconds=10 * LEFT_S)
    patient = dist.new_group(backend="gloo", timeout=patience)
    began, error = time.perf_counter(), ""
    try:
        engine.train_step(batch, Raising() if raises else PolicyGradient())
    except Exception as raised:  # the others' is whatever the collective library says
        error = type(raised).__name__
    seconds = time.perf_counter() - began
    dist.monitored_barrier(patient, timeout=patience)
    return {"raises": raises, "error": error, "seconds": seconds}


def refusals(run: Runner) -> Results:
    """What goes wrong on the last rank goes wrong on all, and changes nothing."""
    engine = run.engine({1: "d1", 2: "d2", 4: "d4"}[run.world], **SMALL)
    before = _sent(engine, run.rank)
    good = run.shard()
    long_batch = make_batch([(20, 12)]).with_tokens(advantages=torch.zeros(32), returns=torch.zeros(32))
    nan = good.with_tokens(advantages=torch.full((good.num_tokens,), float("nan")))
    last = run.rank == run.world - 1
    out: Results = {
        "too_long": error_of(lambda: engine.train_step(long_batch if last else good, PolicyGradient())),
        "wrong_head": error_of(lambda: engine.forward(good, frozenset({Output.VALUES}))),
        "nan": report(engine, nan if last else good)["stepped"],
    }
    sink = MemorySink(spoil=lambda name, tensor: tensor + 1 if name.endswith("norm.weight") else tensor)
    out["spoiled"] = error_of(lambda: engine.send_weights(sink if run.rank == 0 else None, 2))
    out["disk"] = error_of(lambda: engine.save_weights(Path("/proc/nowhere/model")))
    out["unchanged"] = before == _sent(engine, run.rank)
    engine.close()
    engine.close()
    return out | (_refused_on_two(run) if run.world == 2 else {})


def _refused_on_two(run: Runner) -> Results:
    last = run.rank == run.world - 1
    out: Results = {}
    engine = run.engine("d2", model="moe")
    good = run.shard(recorded=True)
    unfit = good.tokens[ROUTED_EXPERTS].clone()
    unfit[1, 0] = 9
    bad = good.with_tokens(**{ROUTED_EXPERTS: unfit})
    out["routes"] = error_of(lambda: engine.train_step(bad if last else good, PolicyGradient()))
    engine.close()
    dense = run.engine("d2")
    out["no_experts"] = error_of(lambda: dense.train_step(good, PolicyGradient()))
    dense.close()
    for name, (layout, options, spec) in run.plan.refused.items():
        out[name] = error_of(lambda: run.engine(layout, options, **spec).close())  # noqa: B023
    missing = "nowhere" if last else "qwen3"
    out["no_model"] = error_of(lambda: run.engine("d2", model=missing).close())
    return out


BESIDE = (frozen_role, uneven, value_head, half_precision, away, resume, reshard, left, refusals)
"""What every engine does beside its cases."""


def main(plan: Plan) -> None:
    """Run everything, or with a fourth argument what its name begins with; end the process."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="The .grad attribute")  # Dynamo, of what FSDP gathered
    torch.set_num_threads(1)
    run = Runner(plan, rank, world, folder)
    results: Results = {"cases": {}}
    for name, case in plan.cases[world].items():
        if name.startswith(only):
            results["cases"][name] = trained(run, name, case)
    for action in (*BESIDE, *plan.others):
        if action.__name__.startswith(only):
            results[action.__name__] = action(run)
    (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)
