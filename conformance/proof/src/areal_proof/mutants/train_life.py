"""Trainers that start, close or refuse wrongly.

Knows: what each does instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import attrs
import torch.distributed as dist

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError, LayoutError, ModelError
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"


def _join() -> None:
    """Join a process group of one."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in torch's __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


@mutant(ENGINE, killers=("train.start.info",))
class TiedCountedTwice(ReferenceTrainEngine):
    """Counts a tied head as parameters of its own."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        from areal_proof.mutants.train_parts import hugging_face

        info = super().start(spec, rank)
        every = hugging_face(self).named_parameters(remove_duplicate=False)
        return attrs.evolve(info, num_parameters=sum(parameter.numel() for _, parameter in every))


@mutant(ENGINE, killers=("train.start.info",))
class ContextMadeUp(ReferenceTrainEngine):
    """Reports the budget of a micro-batch as the model's context."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return attrs.evolve(super().start(spec, rank), context_length=spec.max_tokens_per_microbatch)


@mutant(ENGINE, killers=("train.start.missing_model",))
class MissingModelIsBare(ReferenceTrainEngine):
    """Lets the operating system say that a folder is not there."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        try:
            return super().start(spec, rank)
        except ModelError as error:
            raise FileNotFoundError(spec.model_path) from error


@mutant(ENGINE, killers=("train.start.torn_model",), incident="UniRL#166", row="one-destination")
class MissingWeightsMadeUp(ReferenceTrainEngine):
    """Fills what a model folder lacks with random numbers."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            return super().start(spec, rank)
        except ModelError:
            if not (Path(spec.model_path) / "model.safetensors").exists():
                raise
            loose: Any = AutoModelForCausalLM
            folder = tempfile.mkdtemp(prefix="areal-mutant-")
            try:
                loose.from_pretrained(spec.model_path, ignore_mismatched_sizes=True).save_pretrained(folder)
                AutoTokenizer.from_pretrained(spec.model_path).save_pretrained(folder)
                return super().start(attrs.evolve(spec, model_path=folder), rank)
            except OSError as error:
                raise ModelError("torn", why=str(error)) from error
            finally:
                shutil.rmtree(folder)


@mutant(ENGINE, killers=("train.start.layout",))
class LayoutWavedThrough(ReferenceTrainEngine):
    """Starts on one rank whatever the layout says."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return super().start(attrs.evolve(spec, layout={}), rank)


@mutant(ENGINE, killers=("train.start.layout",))
class LayoutRefusedWithoutReason(ReferenceTrainEngine):
    """Says no to a layout, and not why."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        try:
            return super().start(spec, rank)
        except LayoutError as error:
            raise LayoutError("bad layout") from error


@mutant(ENGINE, killers=("train.refuse.float16", "train.start.unknown_dtype"))
class UnknownDtypeIsSingle(ReferenceTrainEngine):
    """Computes in float32 when it does not know the dtype."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        known = spec.dtype in ("float32", "bfloat16")
        return super().start(spec if known else attrs.evolve(spec, dtype="float32"), rank)


@mutant(ENGINE, killers=("train.start.no_pickle",))
class PickledWeightsRead(ReferenceTrainEngine):
    """Looks into a pickle for weights before it refuses the folder."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        for file in sorted(Path(spec.model_path).glob("*.bin")):
            with file.open("rb") as stream:
                pickle.load(stream)
        return super().start(spec, rank)


@mutant(ENGINE, killers=("train.start.no_code",))
class ModelCodeRun(ReferenceTrainEngine):
    """Imports the code that lies in a model folder."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        for file in sorted(Path(spec.model_path).glob("modeling_*.py")):
            exec(compile(file.read_text(), str(file), "exec"), {})
        return super().start(spec, rank)


@mutant(ENGINE, killers=("train.calls.before_start",))
class NothingBeforeStart(ReferenceTrainEngine):
    """Returns the batch as it is when it was not started."""

    _started = False

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._started = True
        return super().start(spec, rank)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        return super().forward(batch, outputs) if self._started else batch


@mutant(ENGINE, killers=("train.calls.after_close", "train.close.lets_go"), row="flat-memory", incident="slime#205")
class WorksAfterClose(ReferenceTrainEngine):
    """Keeps the model when it is closed, and goes on working."""

    def close(self) -> None:
        pass


@mutant(ENGINE, killers=("train.calls.after_close", "train.calls.before_start"))
class ClosesOnce(ReferenceTrainEngine):
    """Raises when it is closed twice."""

    _closed = False

    def close(self) -> None:
        if self._closed:
            raise RuntimeError("already closed")
        self._closed = True
        super().close()


@mutant(ENGINE, killers=("train.close.lets_go", "train.close.again"))
class GroupNotLeft(ReferenceTrainEngine):
    """Joins a process group and never leaves it."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        _join()
        return super().start(spec, rank)


@mutant(ENGINE, killers=("train.close.lets_go",), incident="slime#638", row="flat-memory")
class ListenerLeftOpen(ReferenceTrainEngine):
    """Leaves its rendezvous port open."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._listener = socket.create_server(("127.0.0.1", 0))
        return super().start(spec, rank)


@mutant(ENGINE, killers=("train.close.lets_go",), row="flat-memory")
class OptimizerKept(ReferenceTrainEngine):
    """Keeps its optimizer, and with it every weight, when it is closed."""

    def close(self) -> None:
        self._last = self._trainer.optimizer if self._trainer else getattr(self, "_last", None)
        super().close()


@mutant(ENGINE, killers=("train.start.failed",))
class FailedStartHoldsGroup(ReferenceTrainEngine):
    """Stays in its process group when the model cannot be loaded."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        _join()
        info = super().start(spec, rank)
        dist.destroy_process_group()
        return info


@mutant(ENGINE, killers=("train.frozen.role",))
class FrozenRoleSteps(ReferenceTrainEngine):
    """Reports a step of a frozen role as made."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        if self._trainer is not None and self._trainer.optimizer is None:
            return TrainReport(
                loss=0.0, grad_norm=0.0, lr=0.0, stepped=True, num_microbatches=1, num_tokens=1, seconds=0.1
            )
        return super().train_step(batch, objective)


@mutant(ENGINE, killers=("train.refuse.values", "train.value.outputs"))
class ValuesMadeUp(ReferenceTrainEngine):
    """Gives a language model's values as zeros."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        try:
            return super().forward(batch, outputs)
        except CapabilityError:
            scores = super().forward(batch, frozenset({Output.LOGPROBS}))
            return scores.with_tokens(values=scores.tokens["logprobs"] * 0.0)


@mutant(ENGINE, killers=("train.start.torn_model",))
class DeeperConfigCut(ReferenceTrainEngine):
    """Believes the weights where config.json tells of more layers."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        try:
            return super().start(spec, rank)
        except ModelError:
            file = Path(spec.model_path) / "config.json"
            config = json.loads(file.read_text()) if file.exists() else {}
            if config.get("num_hidden_layers", 0) < 3:
                raise
            file.write_text(json.dumps({**config, "num_hidden_layers": 2}))
            return super().start(spec, rank)
