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
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from areal_archon.pipeline import PipelinedModel
from areal_archon.schedules import Schedule
from areal_core.contract.errors import ArealError, ModelError
from areal_core.contract.train import Output
from areal_core.data.batch import Batch
from areal_core.testing.batches import VOCAB_SIZE, make_batch
from areal_core.training.attention import Packing, attend
from areal_core.training.context import ContextRanks
from areal_core.training.logprobs import logprobs_and_entropy

HIDDEN, HEADS, LAYERS = 16, 2, 8
CPU = torch.device("cpu")
OUTPUTS = frozenset({Output.LOGPROBS, Output.ENTROPY})
MICROBATCHES = [[(2, 3), (1, 5)], [(1, 1)], [(4, 9)], [(3, 1), (2, 2), (5, 7)], [(2, 12)]]
"""Of 11, 2, 13, 20 and 14 tokens: none fills another."""
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


class Block(nn.Module):
    """Attention and two linear layers over packed tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.Tanh(), nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        q, k, v = self.qkv(self.norm(hidden)).unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        hidden = hidden + self.out(attend(q, k, v, packing).flatten(1))
        return hidden + self.mlp(hidden)


class Part(nn.Module):
    """Stage `number` of `count`: some blocks, the embedding at one end, norm and head at the other."""

    def __init__(self, number: int, count: int, *, recomputed: bool = False) -> None:
        super().__init__()
        first, last = (LAYERS * number) // count, (LAYERS * (number + 1)) // count
        self.recomputed = recomputed
        self.embedding = nn.Embedding(VOCAB_SIZE, HIDDEN) if number == 0 else None
        self.blocks = nn.ModuleDict({str(layer): Block() for layer in range(first, last)})
        self.norm = nn.LayerNorm(HIDDEN) if number == count - 1 else None
        self.head = nn.Linear(HIDDEN, VOCAB_SIZE, bias=False) if number == count - 1 else None

    def forward(
        self, inputs: Tensor, *, packing: Packing, batch: Batch, outputs: frozenset[Output]
    ) -> Tensor | Mapping[str, Tensor]:
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        for block in self.blocks.values():
            if self.recomputed:
                hidden = checkpoint(block, hidden, packing, use_reentrant=False)
            else:
                hidden = block(hidden, packing)
        if self.head is None or self.norm is None:
            return hidden[None][0]  # a view, as a model with a batch dimension returns it
        return self.columns(self.norm(hidden), packing, batch)

    def columns(self, hidden: Tensor, packing: Packing, batch: Batch) -> Mapping[str, Tensor]:
        assert self.head is not None
        rows, part = packing.predicted, packing.part
        rows = rows[batch.tokens["loss_mask"][rows]]
        rows = rows[(rows > part.start) & (rows <= part.stop)]
        targets = batch.tokens["input_ids"][rows]
        found = logprobs_and_entropy(hidden[rows - 1 - part.start], self.head.weight, None, targets, 1.0)
        zeros = torch.zeros(batch.num_tokens)
        columns = [zeros.index_copy(0, rows, column) for column in found]
        if packing.context is not None:
            columns = [packing.context.total(column) for column in columns]
        return dict(zip([Output.LOGPROBS, Output.ENTROPY], columns, strict=True))


def build(numbers: Sequence[int], count: int, *, tied: bool = False, recomputed: bool = False) -> list[Part]:
    """Return stages with the weights the whole model has there, whatever it is cut into."""
    whole = Part(0, 1)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    weights = whole.state_dict()
    if tied:
        weights["head.weight"] = weights["embedding.weight"]
    stages = [Part(number, count, recomputed=recomputed) for number in numbers]
    for stage in stages:
        stage.load_state_dict({name: weights[name] for name in stage.state_dict()})
    return stages


def microbatches(count: int, shard: int = 0) -> list[Batch]:
    """Return this many micro-batches with a weight for each token, of one shard of the data."""
    parts = [make_batch(MICROBATCHES[(number + 2 * shard) % len(MICROBATCHES)]) for number in range(count)]
    generator = torch.Generator().manual_seed(11 + shard)
    return [part.with_tokens(weight=torch.randn(part.num_tokens, generator=generator)) for part in parts]


class Score:
    """A share of the loss that depends on every column, and what it was asked for."""

    def __init__(self, parts: Sequence[Batch], raise_at: int = -1) -> None:
        self.parts, self.raise_at = parts, raise_at
        self.asked: list[int] = []
        self.total = 0.0

    def __call__(self, number: int, columns: Mapping[str, Tensor]) -> Tensor:
        self.asked.append(number)
        if number == self.raise_at:
            raise ValueError(f"micro-batch {number} is not to be scored")
        weight = self.parts[number].tokens["weight"]
        loss = (weight * columns[Output.LOGPROBS]).sum() + 0.1 * columns[Output.ENTROPY].square().sum()
        self.total += float(loss.detach())
        return loss


Gradients = dict[str, Tensor]


def oracle(shards: Sequence[Sequence[Batch]], *, tied: bool = False) -> tuple[Gradients, list[Mapping[str, Tensor]]]:
    """Return the gradient of all micro-batches of all shards, and the columns of the first shard."""
    (model,) = build([0], 1, tied=tied)
    kept = []
    for parts in shards:
        score = Score(parts)
        for number, part in enumerate(parts):
            columns = model(part.tokens["input_ids"], packing=Packing.of(part), batch=part, outputs=OUTPUTS)
            score(number, columns).backward()
            kept.append({name: column.detach() for name, column in columns.items()})
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if tied:
        gradients["embedding.weight"] = gradients["head.weight"] = (
            gradients["embedding.weight"] + gradients["head.weight"]
        )
    return gradients, kept[: len(shards[0])]


def distance(stages: Sequence[nn.Module], expected: Gradients, factor: float = 1.0) -> float:
    """Return how far the gradients are off, relative to the expected ones; infinite where there is none."""
    worst = 0.0
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.grad is None:
                return float("inf")
            found = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            reference = expected[name] * factor
            worst = max(worst, float((found - reference).norm() / reference.norm()))
    return worst


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
