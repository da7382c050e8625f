"""The second trainer: the contract, from parts that share nothing with those of engines outside of this package.

Knows: the order of one step, and which part answers which call.
Does not know: algorithms, transports, the loop.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CapabilityError, LayoutError, ResourceError, TrainError
from areal_core.contract.train import (
    CANDIDATES,
    EngineInfo,
    Head,
    Objective,
    Output,
    RankContext,
    Sum,
    TrainReport,
    TrainSpec,
)
from areal_core.contract.weights import Receipt, WeightSink
from areal_proof.second.architecture import EMBEDDING, LM_HEAD, Architecture, read_architecture
from areal_proof.second.train import checkpoint
from areal_proof.second.train.adam import AdamW
from areal_proof.second.train.adapters import Adapters, new_adapters
from areal_proof.second.train.columns import Columns, cut
from areal_proof.second.train.config import SecondTrainConfig
from areal_proof.second.train.folder import read_tensors, write_model
from areal_proof.second.train.network import Network
from areal_proof.second.train.pending import Pending
from areal_proof.second.train.ranks import Ranks, degrees, join
from areal_proof.second.train.sending import send
from areal_proof.second.train.spill import Spill

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@frozen(kw_only=True, eq=False)
class Started:
    """What exists between `start` and `close`. `table` is all that an exact state holds, by name."""

    spec: TrainSpec
    ranks: Ranks
    device: torch.device
    columns: Columns
    adapters: Adapters
    weights: Mapping[str, Tensor]
    adam: AdamW | None
    table: Mapping[str, Tensor]
    spill: Spill

    @property
    def architecture(self) -> Architecture:
        """Return what the model is."""
        return self.columns.network.architecture


class SecondTrainEngine:
    """Whole float32 weights on every rank; tensor ranks share out every layer, data ranks the batch."""

    def __init__(self, config: SecondTrainConfig | None = None) -> None:
        """Keep the options."""
        self.version = 0
        self._config = config or SecondTrainConfig()
        self.started: Started | None = None
        self.pending: Pending | None = None

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Read the folder and make optimizer and adapters."""
        tensor_size = degrees(spec.layout, rank.world_size)
        dtype = _dtype(spec.dtype)
        device = _device(rank)
        ranks = join(rank, tensor_size)
        built: list[Started] = []
        try:
            ranks.agree(lambda: built.append(self.build(spec, ranks, device, dtype)))
        except BaseException:
            self.started = None  # this rank may have been built when another one failed
            ranks.leave()
            raise
        started = self.started = built[0]
        return EngineInfo(
            engine="second",
            engine_version=str(torch.__version__),
            device=str(device),
            num_parameters=sum(tensor.numel() for tensor in started.weights.values()),
            context_length=started.architecture.context,
            data_rank=ranks.data_rank,
            data_size=ranks.data_size,
        )

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        torch.manual_seed(spec.seed + ranks.data_rank)
        architecture = read_architecture(spec.model_path, spec.head)
        _check_shares(architecture, ranks.tensor_size)
        shapes = architecture.shapes(spec.head)
        weights = {name: tensor.to(device) for name, tensor in read_tensors(spec.model_path, shapes).items()}
        adapters = Adapters()
        if spec.lora is not None:
            made = new_adapters(spec.lora, spec.head, shapes, spec.seed)
            adapters = Adapters(tensors={n: t.to(device) for n, t in made.tensors.items()}, scale=made.scale)
        trained = dict(adapters.tensors) if spec.lora is not None else weights
        adam = AdamW(trained, spec.optimizer) if spec.optimizer is not None else None
        for tensor in trained.values():
            tensor.requires_grad_(adam is not None)
        network = Network(
            architecture=architecture,
            tensors=weights,
            adapters=adapters,
            ranks=ranks,
            dtype=dtype,
            recompute=self._config.activation_checkpointing,
        )
        table = {f"weights/{name}": tensor for name, tensor in weights.items()}
        table |= {f"adapters/{name}": tensor for name, tensor in adapters.tensors.items()}
        table |= adam.moments if adam is not None else {}
        return Started(
            spec=spec,
            ranks=ranks,
            device=device,
            columns=Columns(network=network, spec=spec),
            adapters=adapters,
            weights=weights,
            adam=adam,
            table=table,
            spill=Spill(table.values()),
        )

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Agree on the normaliser, add up every micro-batch's gradient, then those of all ranks, then update."""
        began = time.perf_counter()
        here = self.running()
        if here.adam is None:
            raise TrainError("train_step on a frozen role", why="its spec has no optimizer", fix="give it one")
        parts: list[Batch] = []

        def prepare() -> list[float]:
            here.columns.check(batch, objective.outputs, objective.columns, step=True)
            parts.extend(batch.split(cut(batch, here.spec.max_tokens_per_microbatch)))
            return [float(len(parts)), sum(float(objective.normalizer(part)) for part in parts), batch.num_tokens]

        shards = here.ranks.agree(prepare)[:: here.ranks.tensor_size]
        normalizer = sum(shard[1] for shard in shards)
        if not 0.0 < normalizer < math.inf:
            raise BatchError(
                f"the loss would be divided by {normalizer}",
                why="on no rank is any token of this batch trained on",
                fix="set loss_mask where tokens were generated",
            )
        own = {name: torch.zeros_like(tensor) for name, tensor in here.adam.trained.items()}
        sums = here.ranks.agree(lambda: _add_gradients(here, own, parts, objective, normalizer))
        gradients = dict(zip(own, here.ranks.add_up(list(own.values())), strict=True))
        norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
        lr = here.adam.lr
        return TrainReport(
            loss=sum(loss for loss, _ in sums[:: here.ranks.tensor_size]),
            grad_norm=norm,
            lr=lr,
            stepped=here.adam.step(gradients, norm),
            num_microbatches=max(int(shard[0]) for shard in shards),
            num_tokens=sum(int(shard[2]) for shard in shards),
            seconds=time.perf_counter() - began,
            metrics=_total([metrics for _, metrics in sums[:: here.ranks.tensor_size]]),
        )

    @torch.no_grad()
    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Add columns, micro-batch by micro-batch."""
        here = self.running()
        here.ranks.agree(lambda: here.columns.check(batch, outputs))
        columns = {str(name): torch.zeros(batch.num_tokens, device=batch.device) for name in outputs}
        if Output.CANDIDATE_LOGPROBS in outputs:
            columns[CANDIDATES] = batch.tokens[CANDIDATES].clone()
            columns[Output.CANDIDATE_LOGPROBS] = torch.zeros(columns[CANDIDATES].shape, device=batch.device)
        numbers = batch.with_tokens(row=torch.arange(batch.num_tokens, device=batch.device))
        for part in numbers.split(cut(batch, here.spec.max_tokens_per_microbatch)):
            for name, column in here.columns.of(part.to(here.device), outputs).items():
                columns[str(name)][part.tokens["row"]] = column.to(batch.device)
        return batch.with_tokens(**columns)

    def weights_in_use(self) -> dict[str, Tensor]:
        """Return every weight of the model as it computes, adapters merged."""
        here = self.running()
        return {name: here.adapters.merged(name, tensor) for name, tensor in here.weights.items()}

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send the weights in use, or the adapter alone, in the spec's dtype."""
        here = self.running()
        if here.spec.send_adapter:
            return send(sink, here.ranks, version, self.adapter_alone(here), {})
        tied = here.architecture.tied and here.spec.head is Head.CAUSAL_LM
        return send(sink, here.ranks, version, self.exported(here), {LM_HEAD: EMBEDDING} if tied else {})

    def save_weights(self, path: Path) -> None:
        """Write a model folder of the weights in use."""
        here = self.running()

        def write(folder: Path) -> None:
            if here.ranks.rank == 0:
                tensors = {name: tensor.cpu() for name, tensor in self.exported(here).items()}
                write_model(folder, here.spec.model_path, tensors, here.spec.head, here.spec.dtype)

        checkpoint.write_whole(Path(path), here.ranks, write)

    def save_state(self, path: Path) -> None:
        """Write the table, the steps made and the version."""
        here = self.running()
        progress = {"version": self.version, "steps": here.adam.steps if here.adam else 0}
        checkpoint.save(Path(path), here.ranks, here.table, facts_of(here), progress)

    def begin_state(self, path: Path) -> None:
        """Copy the table and write the copy in a thread."""
        here = self.running()
        if self.pending is not None:
            raise TrainError(f"{path} is the second state at a time", why="another was begun", fix="finish that one")
        progress = {"version": self.version, "steps": here.adam.steps if here.adam else 0}
        self.pending = Pending(
            Path(path), here.ranks, checkpoint.writer(here.ranks, here.table, facts_of(here), progress)
        )

    def state_written(self) -> bool:
        """Ask the thread."""
        self.opened()
        return self.pending is None or self.pending.written

    def finish_state(self) -> None:
        """Wait for the thread, and for those of the other ranks."""
        self.opened()
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.finish()

    def load_state(self, path: Path) -> None:
        """Return to a table."""
        here = self.running()
        progress = checkpoint.load(Path(path), here.ranks, here.table, facts_of(here))
        self.version = int(progress["version"])
        if here.adam is not None:
            here.adam.steps = int(progress["steps"])

    def offload(self) -> None:
        """Move the table off the device."""
        here = self.opened()
        here.spill.push(here.ranks.agree)

    def onload(self) -> None:
        """Bring the table back."""
        self.opened().spill.pull()

    def close(self) -> None:
        """Leave the others and let go of everything."""
        started, self.started = self.started, None
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.drop()
        if started is not None:
            started.spill.drop()
            started.ranks.leave()

    def exported(self, here: Started) -> dict[str, Tensor]:
        return {name: tensor.to(_dtype(here.spec.dtype)) for name, tensor in self.weights_in_use().items()}

    def adapter_alone(self, here: Started) -> dict[str, Tensor]:
        return {name: tensor.to(_dtype(here.spec.dtype)) for name, tensor in here.adapters.alone().items()}

    def opened(self) -> Started:
        if self.started is None:
            raise TrainError("the engine holds no model", why="it was not started, or was closed", fix="start one")
        return self.started

    def running(self) -> Started:
        started = self.opened()
        if started.spill.out:
            raise TrainError("the weights are offloaded", why="offload was called last", fix="call onload first")
        return started


def _add_gradients(
    here: Started, into: Mapping[str, Tensor], parts: list[Batch], objective: Objective, normalizer: float
) -> tuple[float, dict[str, list[float]]]:
    """Add the gradient of each micro-batch; return the loss and the metrics of this rank's shard."""
    scale = torch.tensor(normalizer, dtype=torch.float64, device=here.device)
    trained = list(here.adam.trained.values()) if here.adam is not None else []
    total, metrics = 0.0, dict[str, list[float]]()
    for part in (part.to(here.device) for part in parts):
        loss, sums = objective.loss(here.columns.of(part, objective.outputs), part, scale)
        if loss.requires_grad:
            share = loss / here.ranks.tensor_size  # every tensor rank has the whole loss
            found = torch.autograd.grad(share, trained, allow_unused=True)
            for gradient, addend in zip(into.values(), found, strict=True):
                if addend is not None:
                    gradient += addend
        total += float(loss.detach())
        for name, entry in sums.items():
            value, weight = metrics.get(name, (0.0, 0.0))
            metrics[name] = [value + entry.value, weight + entry.weight]
    return total, metrics


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise CapabilityError(
            f"the second trainer does not compute in {name!r}",
            why=f"it knows {', '.join(DTYPES)}; float16 would need loss scaling",
            fix="set dtype to bfloat16",
        )
    return DTYPES[name]


def _device(rank: RankContext) -> torch.device:
    if rank.device == "cpu":
        return torch.device("cpu")
    if rank.device != "cuda" or rank.local_rank >= torch.cuda.device_count():
        raise ResourceError(
            f"no device {rank.device}:{rank.local_rank}",
            why=f"this engine runs on cpu and cuda; torch sees {torch.cuda.device_count()} cuda devices",
            fix="ask for another device",
        )
    return torch.device("cuda", rank.local_rank)


def _check_shares(architecture: Architecture, tensor_size: int) -> None:
    """Refuse a tensor degree that does not divide what it divides."""
    counts = {
        "attention heads": architecture.heads,
        "key-value heads": architecture.kv_heads,
        "MLP columns": architecture.expert_intermediate or architecture.intermediate,
    }
    for name, count in counts.items():
        if count % tensor_size:
            raise LayoutError(
                f"{count} {name} cannot be shared by {tensor_size} tensor ranks",
                why="each rank computes as many as the others",
                fix=f"take a tensor degree that divides {count}",
            )


def facts_of(here: Started) -> dict[str, object]:
    """Return what a state must have in common with the engine that loads it; json."""
    lora = here.spec.lora
    return {
        "kind": here.architecture.kind,
        "head": here.spec.head.value,
        "shapes": {name: list(tensor.shape) for name, tensor in here.weights.items()},
        "trained": here.adam is not None,
        "lora": None if lora is None else [lora.rank, lora.alpha, list(lora.targets), base_of(here.spec.model_path)],
    }


def base_of(folder: str) -> str:
    """Return a digest of the weights an adapter lies over: its state is of no use over others."""
    digest = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _total(parts: list[Mapping[str, list[float]]]) -> dict[str, Sum]:
    """Add the metrics of all shards; a shard may lack some."""
    names = dict.fromkeys(name for part in parts for name in part)
    held = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: Sum(value=sum(v for v, _ in of), weight=sum(w for _, w in of)) for name, of in held.items()}
