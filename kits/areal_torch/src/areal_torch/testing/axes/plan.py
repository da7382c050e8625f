"""What several ranks of one engine are to do: its models, layouts and options, and one rank that starts engines.

    PLAN = Plan(name="mine", make=lambda options: MyEngine(MyConfig(**options)), cases=cases, ...)

Knows: the contract; that an engine keeps a `Trainer` in `trainer`.
Does not know: engines, or what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen
from torch import Tensor

from areal_core.config.backend import parse_backend
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, BatchError
from areal_core.contract.train import EngineInfo, Objective, OptimizerSpec, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_torch.layout import coordinates
from areal_torch.optimizer import local
from areal_torch.testing.axes.oracle import EPS, full_batch, routed
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient

Engine = Any  # any class of the contract's TrainEngine, whose privates are read
Options = Mapping[str, Any]  # Any: the engine's own
Results = dict[str, Any]  # Any: json

OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=EPS)
SMALL: Mapping[str, Any] = {"max_tokens_per_microbatch": 20}
"""Fields of a TrainSpec that cut the batch into several micro-batches."""
ROWS = {1: [list(range(8))], 2: [[0, 3, 4, 7], [1, 2, 5, 6]], 4: [[0], [3, 4, 7], [], [1, 2, 5, 6]]}
"""Which sequences each data rank takes, by the number of data ranks; of four one has none."""


@frozen(kw_only=True)
class Case:
    """A model, a layout and options, trained for three steps, if `routed` on drawn routes. Any: fields of the spec."""

    model: str
    layout: str
    options: Options = field(factory=dict)
    spec: Mapping[str, Any] = field(factory=dict)
    routed: bool = False


def split_built(engine: Engine, name: str, whole: Tensor) -> Mapping[str, Tensor]:
    """Return a parameter under the names of a folder, as an engine knows it that keeps `StageWeights` in `built`."""
    (parameter,) = (each for each in engine.built.weights.parameters if each.name == name)
    found: Mapping[str, Tensor] = parameter.split(whole)
    return found


@frozen(kw_only=True)
class Plan:
    """What is done with one engine."""

    name: str
    """Of the backend."""
    make: Callable[[Options], Engine]
    cases: Mapping[int, Mapping[str, Case]]
    """By the number of ranks, by name. There must be qwen3/d1 on one."""
    options: Options = field(factory=dict)
    """For what is no case."""
    halves: Mapping[str, Options] = field(factory=dict)
    """Layout -> options of the computation in bfloat16."""
    beside: Mapping[str, Mapping[int, str]] = field(factory=dict)
    """Other layouts than those of `beside.LAYOUTS`: what is done -> number of ranks -> layouts."""
    reshards: Mapping[int, Sequence[tuple[str, str, Options]]]
    """By the number of ranks: the name of a state that others left, the layout that loads it, options."""
    refused: Mapping[str, tuple[str, Options, Mapping[str, Any]]]
    """Starts that cannot be, on two ranks: layout, options, fields of the spec and the model."""
    note: Callable[[Engine], Results] = lambda engine: {}
    """What else is told of the engine of a case."""
    split: Callable[[Engine, str, Tensor], Mapping[str, Tensor]] = split_built
    """How a whole parameter of that name, or what belongs to it, is named in a model folder."""
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
        self.info: EngineInfo | None = None

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
        self.info = engine.start(TrainSpec(**{**fields, **spec}), context)
        told = (self.info.data_rank, self.info.data_size)
        assert told == (self.place["d"], self.layout.get("d", 1)), "shards by `coordinates`"
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


def sent(engine: Engine, rank: int) -> dict[str, str]:
    """Return the fingerprints of what the engine sends; on rank 0 only."""
    sink = MemorySink() if rank == 0 else None
    engine.send_weights(sink, 1)
    return {name: fingerprint(tensor) for name, tensor in sink.tensors.items()} if sink else {}


def copies(engine: Engine) -> bool:
    """Return whether ranks that hold the same part of a parameter hold the same bits. Collective."""
    trainer, held = engine.trainer, {}
    for name, parameter in trainer.state.parameters.items():
        part = local(parameter)
        held[name] = [list(trainer.state.box(parameter).offset), fingerprint(part) if part.numel() else ""]
    seen: dict[str, str] = {}
    return all(
        seen.setdefault(f"{name} {offset}", bits) == bits
        for answer in trainer.group.gather(held)
        for name, (offset, bits) in answer.items()
        if bits
    )
