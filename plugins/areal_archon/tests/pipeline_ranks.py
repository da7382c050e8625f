"""Run every pipeline case on two and on four ranks in one start: `pipeline_ranks.py FOLDER`.

Writes FOLDER/pipeline-WORLD-RANK.json; the tests read it. Every rank has the whole model too, and runs the
micro-batches through it one by one: that is what a pipeline's gradients and columns are compared with.

Ranks are forks of this process, for importing torch costs more than all cases together.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pipeline_model import CPU, HIDDEN, LAYERS, OUTPUTS, Score, build, distance, microbatches, oracle
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from areal_archon.pipeline import PipelinedModel
from areal_archon.schedules import Schedule
from areal_core.contract.errors import ArealError, ModelError
from areal_torch.context import ContextRanks

CASES_OF_SCHEDULES = [
    ("1F1B", 1),
    ("Interleaved1F1B", 1),
    ("Interleaved1F1B", 2),
    ("InterleavedZeroBubble", 1),
    ("InterleavedZeroBubble", 2),
    ("ZBVZeroBubble", 2),
]
TIMEOUT_S, LIMIT_S = 120, 270
NAMES = ["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]


def error_of(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except (ArealError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]


class Runner:
    """One rank of the world, which is one pipeline unless a case says otherwise."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.group = dist.group.WORLD

    def pipeline(self, name: str, num_virtual: int, **options: Any) -> PipelinedModel:
        """Return a pipeline over all ranks."""
        tied = options.pop("tied", False)
        schedule = Schedule(name=name, num_ranks=self.world, num_virtual=num_virtual)
        stages = build(
            schedule.stages(self.rank), schedule.num_stages, tied=tied, recomputed=options.pop("recomputed", False)
        )
        names = ("embedding.weight", "head.weight") if tied else None
        return pipelined(stages, schedule, self.group, tied=names, **options)

    def alike(self, columns: Sequence[Mapping[str, Tensor]]) -> bool:
        """Return whether all ranks have the same columns, to the bit."""
        flat = torch.cat([column for part in columns for _, column in sorted(part.items())])
        everyone = [torch.empty_like(flat) for _ in range(self.world)]
        dist.all_gather(everyone, flat)
        return all(torch.equal(flat, other) for other in everyone)


def pipelined(stages: Sequence[nn.Module], schedule: Schedule, group: Any, **options: Any) -> PipelinedModel:
    return PipelinedModel(stages, schedule, group, hidden_size=HIDDEN, dtype=torch.float32, device=CPU, **options)


def off(found: Sequence[Mapping[str, Tensor]], expected: Sequence[Mapping[str, Tensor]]) -> float:
    """Return the largest difference of any column, infinite where their shapes differ."""
    assert len(found) == len(expected)
    worst = 0.0
    for mine, other in zip(found, expected, strict=True):
        for name in OUTPUTS:
            if mine[name].shape != other[name].shape:
                return float("inf")
            worst = max(worst, float((mine[name] - other[name]).abs().max()))
    return worst


def schedules(run: Runner) -> dict[str, Any]:
    """Every schedule with few and many micro-batches of unequal lengths."""
    out = {}
    for name, num_virtual in CASES_OF_SCHEDULES:
        if run.world * num_virtual > LAYERS:
            continue
        for count in (1, 2, 3, 5):
            parts = microbatches(count)
            gradients, expected = oracle([parts])
            model, score = run.pipeline(name, num_virtual), Score(parts)
            before = model.columns_of(parts, OUTPUTS)
            model.accumulate(parts, OUTPUTS, score)
            after = model.columns_of(parts, OUTPUTS)
            out[f"{name}-{num_virtual}-{count}"] = {
                "gradient": distance(model.stages, gradients),
                "columns": max(off(before, expected), off(after, expected)),
                "alike": run.alike(before),
                "asked": score.asked,
                "has_last": model.last is not None,
                "needs_grad": any(column.requires_grad for part in after for column in part.values()),
                "hooks": sum(len(stage._forward_hooks) + len(stage._forward_pre_hooks) for stage in model.stages),
            }
    return out


def repeated(run: Runner) -> dict[str, Any]:
    """A second call adds to the gradient of the first; fewer micro-batches, other lengths."""
    out = {}
    for name in NAMES:
        first, second = microbatches(3), microbatches(2, shard=1)
        model = run.pipeline(name, 2 if name != "1F1B" else 1)
        model.accumulate(first, OUTPUTS, Score(first))
        model.columns_of(second, OUTPUTS)
        model.accumulate(second, OUTPUTS, Score(second))
        model.accumulate([], OUTPUTS, Score([]))
        out[name] = {
            "gradient": distance(model.stages, oracle([first, second])[0]),
            "nothing": len(model.columns_of([], OUTPUTS)),
        }
    return out


def tied(run: Runner) -> dict[str, Any]:
    """Both holders of a shared weight have the whole gradient, and the same one."""
    out = {}
    for name in NAMES:
        parts = microbatches(3)
        model = run.pipeline(name, 2 if name != "1F1B" else 1, tied=True)
        for _ in range(2):
            model.accumulate(parts, OUTPUTS, Score(parts))
        ends = [(model.first, "embedding.weight"), (model.last, "head.weight")]
        held = [stage.get_parameter(weight).grad for stage, weight in ends if stage is not None]
        bits = [float(gradient.double().sum()) for gradient in held if gradient is not None]
        out[name] = {"gradient": distance(model.stages, oracle([parts], tied=True)[0], factor=2.0), "bits": bits}
    return out


def recomputed(run: Runner) -> dict[str, Any]:
    """Activation checkpointing in the stages."""
    out = {}
    for name in NAMES:
        parts = microbatches(3)
        model = run.pipeline(name, 2 if name != "1F1B" else 1, recomputed=True)
        model.accumulate(parts, OUTPUTS, Score(parts))
        out[name] = distance(model.stages, oracle([parts])[0])
    return out


def failing_score(run: Runner) -> dict[str, Any]:
    """An error in `score` reaches every rank at once, and the pipeline can be used again."""
    out = {}
    for name in NAMES:
        parts = microbatches(3)
        model = run.pipeline(name, 2 if name != "1F1B" else 1)
        began = time.perf_counter()
        error = error_of(lambda model=model, parts=parts: model.accumulate(parts, OUTPUTS, Score(parts, raise_at=1)))
        seconds = time.perf_counter() - began
        for stage in model.stages:
            stage.zero_grad()
        model.accumulate(parts, OUTPUTS, Score(parts))
        out[name] = {
            "error": error,
            "seconds": seconds,
            "has_last": model.last is not None,
            "gradient": distance(model.stages, oracle([parts])[0]),
        }
    return out


def refusals(run: Runner) -> dict[str, Any]:
    """What cannot run says so before anything is sent."""
    loop = Schedule(name="Interleaved1F1B", num_ranks=run.world, num_virtual=2)
    stages = build(loop.stages(run.rank), loop.num_stages)
    return {
        "stages": error_of(lambda: pipelined(stages[:1], loop, run.group)),
        "ranks": error_of(
            lambda: pipelined(stages, Schedule(name="ZBVZeroBubble", num_ranks=8, num_virtual=2), run.group)
        ),
    }


def sharded(mesh: DeviceMesh, name: str, reshard: bool | None, tied: tuple[str, str] | None = None) -> PipelinedModel:
    """Return two pipeline ranks of stages in FSDP units, one for each block and one for the rest."""
    schedule = Schedule(name=name, num_ranks=2, num_virtual=1 if name == "1F1B" else 2)
    stages = build(schedule.stages(mesh["p"].get_local_rank()), schedule.num_stages, tied=tied is not None)
    for stage in stages:
        for block in stage.blocks.values():
            fully_shard(block, mesh=mesh["d"], reshard_after_forward=reshard)
        fully_shard(stage, mesh=mesh["d"])
        for unit in stage.modules():
            if isinstance(unit, FSDPModule):
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    return pipelined(stages, schedule, mesh["p"].get_group(), tied=tied)


def data_ranks(run: Runner) -> dict[str, Any]:
    """Two pipelines of two ranks, each with its own data, each stage sharded over both."""
    if run.world != 4:
        return {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("p", "d"))
    shard = mesh["d"].get_local_rank()
    out: dict[str, Any] = {}
    for name in NAMES:
        for count in (1, 3):
            parts = [microbatches(count, shard=number) for number in range(2)]
            gradients = oracle(parts)[0]
            for reshard in (False, None) if name.endswith("1F1B") else (False,):
                model = sharded(mesh, name, reshard)
                columns = model.columns_of(parts[shard], OUTPUTS)
                left = any(not isinstance(each, DTensor) for stage in model.stages for each in stage.parameters())
                for _ in range(2):
                    model.accumulate(parts[shard], OUTPUTS, Score(parts[shard]))
                out[f"{name}-{count}-{reshard}"] = {
                    "gradient": distance(model.stages, gradients, factor=2.0),
                    "columns": off(columns, oracle(parts[shard : shard + 1])[1]),
                    "left_gathered": left,
                }
    for name in NAMES:
        parts = [microbatches(3, shard=number) for number in range(2)]
        model = sharded(mesh, name, False, tied=("embedding.weight", "head.weight"))
        model.accumulate(parts[shard], OUTPUTS, Score(parts[shard]))
        out.setdefault("tied", {})[name] = distance(model.stages, oracle(parts, tied=True)[0])
    out["refused"] = {name: error_of(lambda name=name: sharded(mesh, name, None)) for name in NAMES if "Zero" in name}
    loop = Schedule(name="1F1B", num_ranks=2)
    (stage,) = build(loop.stages(mesh["p"].get_local_rank()), 2)
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh["d"])
    out["rootless"] = error_of(lambda: pipelined([stage], loop, mesh["p"].get_group()))
    return out


def unrefused(run: Runner) -> dict[str, Any]:
    """What a zero-bubble schedule computes where its units reshard after all."""
    if run.world != 4:
        return {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("p", "d"))
    shard = mesh["d"].get_local_rank()
    parts = [microbatches(3, shard=number) for number in range(2)]
    gradients = oracle(parts)[0]
    out = {}
    for name in ("InterleavedZeroBubble", "ZBVZeroBubble"):
        for reshard in (True, False):
            model = sharded(mesh, name, False)
            for stage in model.stages:
                for block in stage.blocks.values():
                    assert isinstance(block, FSDPModule)
                    block.set_reshard_after_forward(reshard)
            model.accumulate(parts[shard], OUTPUTS, Score(parts[shard]))
            out[f"{name}-{reshard}"] = distance(model.stages, gradients)
    return out


def context_ranks(run: Runner) -> dict[str, Any]:
    """Two pipeline ranks, each with two context ranks; gradients are summed over these."""
    if run.world != 4:
        return {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("p", "c"))
    context = ContextRanks(mesh["c"].get_group())
    out = {}
    for name in NAMES:
        schedule = Schedule(name=name, num_ranks=2, num_virtual=1 if name == "1F1B" else 2)
        parts = microbatches(3)
        gradients, expected = oracle([parts])
        stages = build(schedule.stages(mesh["p"].get_local_rank()), schedule.num_stages)
        model = pipelined(stages, schedule, mesh["p"].get_group(), context=context)
        model.accumulate(parts, OUTPUTS, Score(parts))
        for stage in stages:
            for parameter in stage.parameters():
                dist.all_reduce(parameter.grad, group=context.group)
        out[name] = {
            "gradient": distance(stages, gradients),
            "columns": off(model.columns_of(parts, OUTPUTS), expected),
        }
    return out


def failing_stage(run: Runner) -> dict[str, Any]:
    """A stage that raises on one rank: the others wait no longer than their group allows."""
    run.group = dist.new_group(timeout=timedelta(seconds=8))
    model, parts = run.pipeline("1F1B", 1), microbatches(3)
    if model.last is not None:
        model.last.register_forward_pre_hook(_raise)
    began = time.perf_counter()
    message = ""
    try:
        model.accumulate(parts, OUTPUTS, Score(parts))
    except Exception as error:  # another rank's timeout is whatever gloo says
        message = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    dist.barrier()  # of the world: the rank that raised is still there while the others wait
    return {"message": message, "seconds": seconds, "has_last": model.last is not None}


def _raise(stage: nn.Module, args: object) -> None:
    raise ModelError("this stage does not run", why="the test says so")


CASES = [
    schedules,
    repeated,
    tied,
    recomputed,
    failing_score,
    refusals,
    data_ranks,
    unrefused,
    context_ranks,
    failing_stage,
]


def work(rank: int, world: int, folder: Path) -> None:
    """Be one rank, which ends itself should the test be gone."""
    signal.alarm(LIMIT_S)
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    run = Runner(rank, world)
    results = {case.__name__: case(run) for case in CASES}
    (folder / f"pipeline-{world}-{rank}.json").write_text(json.dumps(results))


def fork(rank: int, world: int, folder: Path) -> int:
    """Start one rank and return its process id."""
    process = os.fork()
    if process:
        return process
    try:
        work(rank, world, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    folder = Path(sys.argv[1])
    for world in (2, 4):
        ranks = [fork(rank, world, folder) for rank in range(world)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        if any(codes):
            sys.exit(f"ranks of {world} ended with {codes}")


if __name__ == "__main__":
    main()
