"""Seconds and memory of a step of every train engine, against the same transformers model in a bare PyTorch loop.

Engine and bare loop live in the same processes, pack alike and take turns; the bare loop shares out the batch with
FSDP2 whatever the engine's layout. Memory is measured in processes of their own, one side at a time. Beside each time
stands its floor: the operations of the step over the rate of one large matrix product on that device.
`--rank` is for the processes this script starts itself.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import frame
import torch
import workload
from attrs import asdict, evolve, frozen
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_core.config.backend import parse_backend
from areal_core.contract.batch import Batch
from areal_core.contract.train import OptimizerSpec, RankContext, TrainEngine, TrainSpec
from areal_core.plugins.registry import default_registry

TIMEOUT_S = 1800
TOGETHER, ENGINE, BARE = "together", "engine", "bare"
LONG_TAILED, SQUARE = "packed", "padded"


@frozen(kw_only=True)
class Case:
    """One engine in one layout. Any: the engine's own options."""

    backend: str
    size: str = "small"
    options: Mapping[str, Any] = {}
    lengths: str = LONG_TAILED
    """`padded`: every sequence is as long as the longest of the batch, as a rectangle would have it."""
    device: str = "cpu"
    num_sequences: int = 128
    repeats: int = 5

    @property
    def world(self) -> int:
        """Return how many ranks it takes."""
        layout = parse_backend(self.backend).layout
        return max(1, _product(degree for letter, degree in layout.items() if letter != "e"))

    @property
    def title(self) -> str:
        """Return the case in few words."""
        options = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.size, self.backend, *options, *([self.lengths] if self.lengths != LONG_TAILED else [])])


def _product(degrees: Any) -> int:
    result = 1
    for degree in degrees:
        result *= degree
    return result


ON_CPU = (
    *(Case(backend=text, size="tiny") for text in ("reference:d1", "fsdp:d1", "archon:d1", "megatron:d1")),
    *(Case(backend=text) for text in ("reference:d1", "fsdp:d1", "archon:d1", "megatron:d1")),
    *(Case(backend=text) for text in ("fsdp:d2", "fsdp:d1t2", "fsdp:d1c2")),
    *(Case(backend=text) for text in ("archon:d2", "archon:d1t2", "archon:d1c2", "archon:d1p2")),
    *(Case(backend=text) for text in ("megatron:d2", "megatron:d1t2", "megatron:d1p2")),
    Case(backend="fsdp:d1", options={"activation_checkpointing": True, "wrap": "layer"}),
    Case(backend="archon:d1", options={"activation_checkpointing": "full", "wrap": "layer"}),
    Case(backend="archon:d1", options={"activation_checkpointing": "selective", "wrap": "layer"}),
    Case(backend="fsdp:d1", lengths=SQUARE),
)
"""Those with d alone and without options decide the verdict, of 76,000 parameters (`tiny`) and of
4 million. Backends that are not installed are left out."""
_GPU = {"size": "large", "device": "cuda", "num_sequences": 64, "repeats": 9}
ON_CUDA = (
    *(Case(backend=text, **_GPU) for text in ("fsdp:d1", "archon:d1", "megatron:d1")),
    *(Case(backend=f"{name}:d1", options={"compile": True}, **_GPU) for name in ("fsdp", "archon")),
    Case(backend="fsdp:d1", options={"activation_checkpointing": True}, **_GPU),
    Case(backend="archon:d1", options={"activation_checkpointing": "selective"}, **_GPU),
    Case(backend="archon:d1", lengths=SQUARE, **_GPU),
)
"""A Qwen2-class model of random parameters, 1.3 billion unless `--size` says otherwise; bfloat16 products, float32
masters."""


def one_rank(folder: Path, case: Case, side: str, rank: int) -> dict[str, Any]:
    """Measure one side, or both in turns, on this rank. Any: json."""
    frame.one_thread()
    path, store = folder / case.size, f"file://{folder}/store-{side}"
    whole = workload.by_length(_batch(case))
    begun = _memory(case.device)
    actions: dict[str, Callable[[], float]] = {}
    engine = _engine(case)
    info = engine.start(
        TrainSpec(
            role="actor",
            model_path=str(path),
            dtype=_dtype(case.device),
            optimizer=OptimizerSpec(lr=workload.LR, weight_decay=0.0),
            layout=parse_backend(case.backend).layout,
            max_tokens_per_microbatch=1 << 20,
        ),
        RankContext(
            rank=rank, world_size=case.world, local_rank=rank, device=case.device, init_method=store, timeout_s=300.0
        ),
    )
    device = torch.device(case.device, rank) if case.device != "cpu" else torch.device("cpu")
    if side != BARE:
        mine = _share(whole, info.data_rank, info.data_size)
        objective = SFTObjective(SFTConfig())
        actions[ENGINE] = lambda: engine.train_step(mine, objective).loss
    else:
        engine.close()
    if side != ENGINE:
        actions[BARE] = _bare(case, path, _share(whole, rank, case.world), store, device)
    losses = {name: action() for name, action in actions.items()}
    out: dict[str, Any] = {"losses": losses, "tokens": whole.num_tokens, "details": dict(info.details)}
    if side == TOGETHER:
        timing = frame.compare({n: _timed(a, device) for n, a in actions.items()}, repeats=case.repeats)
        out |= {f"{name}_s": value.median for name, value in timing.items()}
        out |= {f"{name}_fastest_s": value.fastest for name, value in timing.items()}
        out["seconds"] = {name: value.seconds for name, value in timing.items()}
        out |= asdict(frame.Figure.of(timing[BARE].seconds, timing[ENGINE].seconds))
        out["matmul_per_s"] = _matmul_rate(device)
    else:
        for action in actions.values():
            action()
        out["bytes"] = _memory(case.device) - begun
    return out


def _engine(case: Case) -> TrainEngine:
    name = parse_backend(case.backend).name
    engine: Any = default_registry().build("train", name, case.options)  # Any: the registry builds every role
    made: TrainEngine = engine
    return made


def _batch(case: Case) -> Batch:
    batch = workload.long_tailed_batch(case.num_sequences, scale=8 if case.size in workload.QWEN2 else 1)
    if case.lengths == LONG_TAILED:
        return batch
    longest = int(batch.lengths.max())
    return workload.equal_batch(case.num_sequences, longest)


def _share(batch: Batch, part: int, parts: int) -> Batch:
    return batch if parts == 1 else batch.select(list(range(part, batch.num_sequences, parts)))


def _bare(case: Case, path: Path, batch: Batch, store: str, device: torch.device) -> Callable[[], float]:
    """Return a step of the loop anybody would write: FSDP2 where there are several ranks."""
    loss: nn.Module = workload.PackedLoss(workload.load_bare(path, packed=True)).to(device)
    if case.world > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                init_method=f"{store}-bare", rank=int(os.environ["RANK"]), world_size=case.world
            )
        fully_shard(loss, mesh=init_device_mesh(case.device, (case.world,)))
    step = workload.bare_step(loss, batch.to(device), loss.parameters())
    if case.device == "cpu":
        return step

    def mixed() -> float:
        with torch.autocast(case.device, torch.bfloat16):
            return step()

    return mixed


def _timed(action: Callable[[], float], device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return action

    def synchronised() -> float:
        result = action()
        torch.accelerator.synchronize()
        return result

    return synchronised


def _dtype(device: str) -> str:
    return "float32" if device == "cpu" else "bfloat16"


def _memory(device: str) -> int:
    """Return the most bytes this process has held."""
    if device != "cpu":
        return int(torch.accelerator.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _matmul_rate(device: torch.device) -> float:
    """Return the operations per second of one large product, the fastest of several."""
    size, dtype = (1024, torch.float32) if device.type == "cpu" else (8192, torch.bfloat16)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    action = _timed(lambda: float((left @ right)[0, 0]), device)
    return 2 * size**3 / frame.compare({"matmul": action}, repeats=9, warmup=2)["matmul"].fastest


def operations(path: Path, batch: Batch) -> float:
    """Return the multiplications and additions of one step: products with weights, and causal attention.

    Six per weight and token (two forward, four backward), the head only where a token is predicted; attention twelve
    times the squared length over two, per hidden unit and layer (Narayanan et al. 2021, without recomputation).
    """
    config = json.loads((path / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = (config[name] * head_dim for name in ("num_attention_heads", "num_key_value_heads"))
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * config["intermediate_size"]
    predicted = float(batch.tokens["loss_mask"].sum())
    squares = float(batch.lengths.double().square().sum())
    weights = 6.0 * (layers * layer * batch.num_tokens + hidden * config["vocab_size"] * predicted)
    return weights + layers * 12.0 * queries * squares / 2


def all_ranks(folder: Path, case: Case, side: str) -> dict[str, Any]:
    """Start the ranks, wait, and return what rank 0 found. Any: json."""
    for file in (f"store-{side}", f"store-{side}-bare"):
        (folder / file).unlink(missing_ok=True)
    if not (folder / case.size).exists():
        workload.make_model(folder, case.size)
    arguments = [str(folder), json.dumps(asdict(case)), side]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), *arguments, "--quick"],  # whoever starts it has looked
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
        )
        for rank in range(case.world)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit(f"{case.title}: a rank failed with {[process.returncode for process in processes]}")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def measure(folder: Path, case: Case) -> dict[str, Any]:
    """Return everything about one case. Any: json."""
    found = all_ranks(folder, case, TOGETHER)
    needed = operations(folder / case.size, _batch(case))
    found["tokens_per_s"] = found["tokens"] / found["engine_s"]
    found["floor_s"] = needed / found["matmul_per_s"] / case.world
    found["share_of_matmul_rate"] = found["floor_s"] / found["engine_s"]
    with ThreadPoolExecutor(1 if case.device == "cpu" else 2) as at_once:  # of a device, each process has its own peak
        alone = at_once.map(lambda side: all_ranks(folder, case, side)["bytes"], (ENGINE, BARE))
        found["engine_bytes"], found["bare_bytes"] = alone
    found["memory_ratio"] = found["engine_bytes"] / found["bare_bytes"]
    speed = f"{found['engine_s']:7.3f} s (floor {found['floor_s']:.3f}), {found['tokens_per_s']:8.0f} tokens/s"
    line = f"{found['ratio']:6.2f} bare/engine, {speed}, memory {found['memory_ratio']:.2f} of bare"
    print(f"  {case.title:64}{line}", flush=True)
    return found


def main() -> int:
    """Measure every case of the device; the verdict is the worst of the data-parallel ones without options."""
    parser = frame.parser(__doc__)
    parser.add_argument("--rank", nargs=4, metavar=("RANK", "FOLDER", "CASE", "SIDE"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="backends: fsdp, or fsdp:d2; all that are installed")
    parser.add_argument("--size", choices=("medium", "large"), help="with cuda: another model than the large one")
    parser.add_argument("--plain", action="store_true", help="leave out cases with options or padding")
    options = parser.parse_args()
    if options.rank:
        rank, folder, case, side = options.rank
        print(json.dumps(one_rank(Path(folder), Case(**json.loads(case)), side, int(rank))), flush=True)
        os._exit(0)  # gloo's threads sometimes abort an orderly exit
    names = options.only or default_registry().names("train")
    known = ON_CPU if options.device == "cpu" else ON_CUDA
    cases = [case for case in known if case.backend in names or _name(case) in names]
    if options.plain:
        cases = [case for case in cases if not case.options and case.lengths == LONG_TAILED]
    if options.size and options.device != "cpu":
        cases = [evolve(case, size=options.size) for case in cases]
    if options.quick:
        cases = [
            Case(backend=case.backend, size="tiny", repeats=2, device=options.device)
            for case in cases
            if not case.options
        ][:3]
    with tempfile.TemporaryDirectory() as scratch:
        found = {case.title: measure(Path(scratch), case) for case in cases}
    judged = [case for case in cases if not case.options and case.lengths == LONG_TAILED]
    deciding = [case for case in judged if set(parse_backend(case.backend).layout) <= {"d"}] or cases
    worst = min((found[case.title] for case in deciding), key=lambda each: each["ratio"])
    result = frame.Result(
        name="train_step" if options.device == "cpu" else f"train_step_{options.device}",
        script="train_step",
        figure=frame.Figure(**{name: worst[name] for name in ("ratio", "repeats", "spread")}),
        what="bare step / engine step, the worst engine over data ranks",
        details={"cases": found},
    )
    return frame.finish(result, quick=options.quick)


def _name(case: Case) -> str:
    return parse_backend(case.backend).name


if __name__ == "__main__":
    sys.exit(main())
