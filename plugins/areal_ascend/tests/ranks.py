"""Run every multi-rank case of the Ascend engine in one start: `ranks.py RANK WORLD FOLDER`.

In each case the same steps are taken by the FSDP engine on the CPU and by the Ascend engine on NPUs, one after
the other in this process. Writes FOLDER/results-WORLD-RANK.json; the tests read it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch_npu
from torch import Tensor
from torch import distributed as dist

from areal_ascend.config import AscendConfig
from areal_ascend.engine import AscendEngine
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError
from areal_core.contract.train import Head, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_fsdp.config import FSDPConfig
from areal_fsdp.engine import FSDPEngine
from areal_torch.collective.group import BroadcastGroup, choose, place
from areal_torch.collective.rank_slot import RankSlot
from areal_torch.optimizer import local
from areal_torch.testing.batches import make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient, ValueRegression
from areal_torch.trainer import running

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]
HALVES = [[0, 3, 4, 7], [1, 2, 5, 6]]
BOTH: Mapping[str, tuple[type[FSDPEngine], type[FSDPConfig]]] = {
    "cpu": (FSDPEngine, FSDPConfig),
    "npu": (AscendEngine, AscendConfig),
}
PIECES = {"wrap": "layer", "reduce_every_microbatch": False, "activation_checkpointing": True}
CASES: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    1: {"whole": {}, "pieces": {"config": PIECES, "max_tokens_per_microbatch": 15}},
    2: {
        "d2": {"layout": {"d": 2}},
        "d2 in pieces": {"layout": {"d": 2}, "config": PIECES, "max_tokens_per_microbatch": 15},
        "d2 in host memory": {"layout": {"d": 2}, "config": {"cpu_offload": True}},
        "t2": {"layout": {"t": 2}},
        "c2": {"layout": {"c": 2}},
        "d2 with experts": {"layout": {"d": 2}, "model": "experts"},
        "d2 as critic": {"layout": {"d": 2}, "head": Head.VALUE},
        "d2 in bfloat16": {"layout": {"d": 2}, "dtype": "bfloat16"},
    },
}


class Calls:
    """Counts the calls of torch_npu's fused attention, and lets them through."""

    def __init__(self) -> None:
        self.count = 0
        real = torch_npu.npu_fusion_attention

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return real(*args, **options)

        torch_npu.npu_fusion_attention = counted


class Runner:
    """One rank: starts engines one after another, each with a rendezvous of its own."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.starts = 0

    def engine(
        self, device: str, *, model: str = "model", config: Mapping[str, Any] | None = None, **spec: Any
    ) -> FSDPEngine:
        """Start the engine of a device."""
        kind, options = BOTH[device]
        engine = kind(options(**(config or {})))
        self.starts += 1
        given = {"role": "actor", "model_path": str(self.folder / model), "layout": {"d": self.world}}
        given["optimizer"] = OptimizerSpec(lr=1e-2, weight_decay=0.1)
        store = self.folder / f"store-{self.world}-{self.starts}"
        self.info = engine.start(TrainSpec(**{**given, **spec}), self.context(device, f"file://{store}"))
        return engine

    def context(self, device: str, init_method: str) -> RankContext:
        """Return where this rank runs."""
        return RankContext(
            rank=self.rank,
            world_size=self.world,
            local_rank=self.rank,
            device=device,
            init_method=init_method,
            timeout_s=60,
        )

    def shard(self) -> Batch:
        """Return the share of this data rank, with advantages and returns."""
        batch = make_batch(SHAPES)
        noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
        whole = batch.with_tokens(advantages=noise, returns=noise.flip(0))
        return whole.select(HALVES[self.info.data_rank]) if self.info.data_size == 2 else whole


def take(run: Runner, device: str, calls: Calls, **case: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take three steps on a device; return what was reported, and this rank's gradients of the first step."""
    engine = run.engine(device, **case)
    before, batch = calls.count, run.shard()
    value = case.get("head") is Head.VALUE
    objective = ValueRegression() if value else PolicyGradient()
    reports = [engine.train_step(batch, objective)]
    trainer = running(engine.trainer)
    assert trainer.optimizer is not None
    moments = trainer.optimizer.moments["exp_avg"]
    grads = {name: moment.detach().cpu().clone() for name, moment in moments.items()}
    reports += [engine.train_step(batch, objective) for _ in range(2)]
    held = {name: local(parameter) for name, parameter in trainer.state.parameters.items()}
    column = Output.VALUES if value else Output.LOGPROBS
    scored = engine.forward(batch, frozenset({column})).tokens[column]
    out = {
        "steps": [[report.loss, report.grad_norm] for report in reports],
        "microbatches": reports[0].num_microbatches,
        "scored": float(scored.double().sum()),
        "calls": calls.count - before,
        "places": sorted({tensor.device.type for tensor in held.values()}),
        "info": [run.info.engine, run.info.device, run.info.details["backend"]],
    }
    engine.close()
    return out, grads | {f"weight {name}": tensor.detach().cpu().clone() for name, tensor in held.items()}


def compare(run: Runner, calls: Calls, case: Mapping[str, Any]) -> dict[str, Any]:
    """Train on both devices; return both reports, and how far each tensor is off, against its largest entry."""
    out: dict[str, Any] = {}
    out["cpu"], expected = take(run, "cpu", calls, **case)
    out["npu"], found = take(run, "npu", calls, **case)
    assert expected.keys() == found.keys()
    out["gaps"] = {
        name: float((tensor - found[name]).abs().max() / tensor.abs().max()) if tensor.abs().sum() else 0.0
        for name, tensor in expected.items()
    }
    return out


def states(run: Runner, _: Calls) -> dict[str, Any]:
    """Save on NPUs after a step; go on there, and on the CPU, from what was saved."""
    saved = run.folder / f"state-{run.world}"
    first = run.engine("npu")
    first.version = 7
    first.train_step(run.shard(), PolicyGradient())
    first.save_state(saved)
    expected = first.train_step(run.shard(), PolicyGradient())
    after = sent(run, first)
    first.close()
    out: dict[str, Any] = {"expected": [expected.loss, expected.grad_norm]}
    for device in BOTH:
        other = run.engine(device)
        other.load_state(saved)
        step = other.train_step(run.shard(), PolicyGradient())
        same = [name for name, bits in sent(run, other).items() if after[name] == bits]
        out[device] = {"version": other.version, "step": [step.loss, step.grad_norm], "same": len(same)}
        other.close()
    out["tensors"] = len(after)
    return out


def sent(run: Runner, engine: FSDPEngine) -> dict[str, str]:
    """Return the fingerprint of everything the engine sends, on rank 0."""
    sink = MemorySink() if run.rank == 0 else None
    engine.send_weights(sink, 1)
    return {name: fingerprint(tensor) for name, tensor in sink.tensors.items()} if sink else {}


def stream(run: Runner, _: Calls) -> dict[str, Any]:
    """Broadcast bytes from an NPU to the others over the group that weights are streamed through."""
    torch_npu.npu.set_device(run.rank)
    store = dist.FileStore(str(run.folder / f"stream-{run.world}"), run.world)
    keys = [f"place/{rank}" for rank in range(run.world)]
    store.set(keys[run.rank], place())
    store.wait(keys, timedelta(seconds=60))
    places = [store.get(key).decode() for key in keys]
    slot = RankSlot(
        address="127.0.0.1",
        port=1,
        group_name="weights",
        backend=choose("auto", places),
        first_rank=run.rank,
        num_ranks=1,
        world_size=run.world,
        timeout_s=60.0,
    )
    group = BroadcastGroup(slot, store)
    numbers = torch.arange(256) if run.rank == 0 else torch.zeros(256)
    flat = numbers.to(torch.uint8).to(group.device)
    group.broadcast(flat)
    out = {"backend": slot.backend, "places": places, "device": str(flat.device), "sum": int(flat.cpu().long().sum())}
    made = group._group  # held until the end: it is left because it is closed, not because it is forgotten
    if run.world == 2 and run.rank == 1:  # the sender leaves, and the next broadcast finds nobody
        started = time.monotonic()
        try:
            group.broadcast(flat)
        except RuntimeError as error:
            out["left"], out["after_s"] = str(error), time.monotonic() - started
        store.set("woken", "")
    group.close()
    if run.world == 2:
        store.wait(["woken"], timedelta(seconds=60))
    assert made is not None
    return out


def refusals(run: Runner, _: Calls) -> dict[str, Any]:
    """What is refused before anything is touched."""
    context = run.context("cpu", "unused")
    spec = TrainSpec(role="actor", model_path=str(run.folder / "model"))
    out = {"cpu": error_of(lambda: AscendEngine().start(spec, context))}
    kept = os.environ.pop("ASCEND_OPP_PATH")
    out["toolkit"] = error_of(lambda: AscendEngine().start(spec, run.context("npu", "unused")))
    os.environ["ASCEND_OPP_PATH"] = kept
    out["pipeline"] = error_of(lambda: run.engine("npu", layout={"p": run.world + 1}))
    return out


def error_of(action: Callable[[], Any]) -> list[str]:
    """Return the class and the text of the error an action ends with."""
    try:
        action()
    except ArealError as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    run, calls, results = Runner(rank, world, folder), Calls(), {}
    programs: dict[str, Callable[[], Any]] = {
        name: lambda case=case: compare(run, calls, case) for name, case in CASES[world].items()
    }
    for program in (states, stream, refusals):
        programs[program.__name__] = lambda program=program: program(run, calls)
    for name, program in programs.items():
        print(name, flush=True)
        results[name] = program()
    results["memory"] = int(torch_npu.npu.max_memory_allocated(rank))
    (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
