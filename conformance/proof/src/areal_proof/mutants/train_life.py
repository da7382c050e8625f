"""Trainers that start, close or refuse wrongly, or are wrong in bfloat16, with recomputed activations, or as critics.

Knows: what each does instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError, ConfigError, LayoutError, ModelError
from areal_core.contract.train import EngineInfo, Head, Output, RankContext, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, catches, given, gives, row
from areal_proof.mutants.train_parts import Columns, OtherModel, hugging_face, parameters, replace_model
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


def _join() -> None:
    """Join a process group of one."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in torch's __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


@breaks("start", "train.start.torn_model", incident="UniRL#166", row="one-destination")
def MissingWeightsMadeUp(original: Original, spec: TrainSpec, rank: RankContext) -> Any:
    """Fills what a model folder lacks with random numbers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        return original()
    except ModelError:
        if not (Path(spec.model_path) / "model.safetensors").exists():
            raise
        loose: Any = AutoModelForCausalLM
        folder = tempfile.mkdtemp(prefix="areal-mutant-")
        try:
            loose.from_pretrained(spec.model_path, ignore_mismatched_sizes=True).save_pretrained(folder)
            AutoTokenizer.from_pretrained(spec.model_path).save_pretrained(folder)
            return original(attrs.evolve(spec, model_path=folder), rank)
        except OSError as error:
            raise ModelError("torn", why=str(error)) from error
        finally:
            shutil.rmtree(folder)


@breaks("start", "train.start.no_pickle")
def PickledWeightsRead(original: Original, spec: TrainSpec) -> Any:
    """Looks into a pickle for weights before it refuses the folder."""
    for file in sorted(Path(spec.model_path).glob("*.bin")):
        with file.open("rb") as stream:
            pickle.load(stream)
    return original()


@breaks("start", "train.start.no_code")
def ModelCodeRun(original: Original, spec: TrainSpec) -> Any:
    """Imports the code that lies in a model folder."""
    for file in sorted(Path(spec.model_path).glob("modeling_*.py")):
        exec(compile(file.read_text(), str(file), "exec"), {})
    return original()


@breaks("start", "train.start.failed")
def FailedStartHoldsGroup(original: Original) -> Any:
    """Stays in its process group when the model cannot be loaded."""
    _join()
    info = original()
    dist.destroy_process_group()
    return info


ROWS = breaks.rows(
    row("ContextMadeUp", "Reports the budget of a micro-batch as the model's context.", "train.start.info",
        start=gives(context_length=lambda spec: spec.max_tokens_per_microbatch)),
    row("MissingModelIsBare", "Lets the operating system say that a folder is not there.", "train.start.missing_model",
        start=catches(ModelError, lambda spec: FileNotFoundError(spec.model_path))),
    row("LayoutWavedThrough", "Starts on one rank whatever the layout says.", "train.start.layout",
        start=given(layout=dict)),
    row("LayoutRefusedWithoutReason", "Says no to a layout, and not why.", "train.start.layout",
        start=catches(LayoutError, lambda: LayoutError("bad layout"))),
    row("UnknownDtypeIsSingle", "Computes in float32 when it does not know the dtype.", "train.refuse.float16",
        "train.start.unknown_dtype",
        start=lambda original, spec, rank: original(spec if spec.dtype in ("float32", "bfloat16")
            else attrs.evolve(spec, dtype="float32"), rank)),
    row("DtypeIsASetting", "Calls a dtype it does not train in a fault of the configuration.",
        "train.start.unknown_dtype", start=catches(CapabilityError, lambda: ConfigError("bad dtype", fix="another"))),
    row("NothingBeforeStart", "Returns the batch as it is when it was not started.", "train.calls.before_start",
        _started=False, start=before(lambda self: setattr(self, "_started", True)),
        forward=lambda original, self, batch, outputs: original(batch, outputs) if self._started else batch),
    row("GroupNotLeft", "Joins a process group and never leaves it.", "train.close.lets_go", "train.close.again",
        start=before(lambda: _join())),
    row("ListenerLeftOpen", "Leaves its rendezvous port open.", "train.close.lets_go", incident="slime#638",
        row="flat-memory",
        start=before(lambda self: setattr(self, "_listener", socket.create_server(("127.0.0.1", 0))))),
    row("OptimizerKept", "Keeps its optimizer, and with it every weight, when it is closed.", "train.close.lets_go",
        row="flat-memory",
        close=before(lambda self: setattr(self, "_last", self.trainer.optimizer if self.trainer
            else getattr(self, "_last", None)))),
    row("FrozenRoleSteps", "Reports a step of a frozen role as made.", "train.frozen.role",
        train_step=lambda original, self, batch, objective: TrainReport(loss=0.0, grad_norm=0.0, lr=0.0, stepped=True,
            num_microbatches=1, num_tokens=1, seconds=0.1) if self.trainer is not None
            and self.trainer.optimizer is None else original(batch, objective)),
    row("FrozenRoleIsCold", "Scores at temperature 1 where a role has no optimizer: penalties compare unlike things.",
        "train.frozen.role",
        start=given(temperature=lambda spec: spec.temperature if spec.optimizer is not None else 1.0)),
    row("TiedCountedTwice", "Counts a tied head as parameters of its own.", "train.start.info",
        start=gives(num_parameters=lambda self: sum(parameter.numel() for _,
            parameter in hugging_face(self).named_parameters(remove_duplicate=False)))),
    row("WorksAfterClose", "Keeps the model when it is closed, and goes on working.", "train.calls.after_close",
        "train.close.lets_go", incident="slime#205", row="flat-memory", close=lambda: None),
    row("ClosesOnce", "Raises when it is closed twice.", "train.calls.after_close", "train.calls.before_start",
        closed=False, close=before(lambda self: RuntimeError("already closed") if self.closed
            else setattr(self, "closed", True))),
)  # fmt: skip


@breaks("forward", "train.refuse.values", "train.value.outputs")
def ValuesMadeUp(original: Original, batch: Batch) -> Any:
    """Gives a language model's values as zeros."""
    try:
        return original()
    except CapabilityError:
        scores = original(batch, frozenset({Output.LOGPROBS}))
        return scores.with_tokens(values=scores.tokens["logprobs"] * 0.0)


@breaks("start", "train.start.torn_model")
def DeeperConfigCut(original: Original, spec: TrainSpec) -> Any:
    """Believes the weights where config.json tells of more layers."""
    try:
        return original()
    except ModelError:
        file = Path(spec.model_path) / "config.json"
        config = json.loads(file.read_text()) if file.exists() else {}
        if config.get("num_hidden_layers", 0) < 3:
            raise
        file.write_text(json.dumps({**config, "num_hidden_layers": 2}))
        return original()


@breaks("start", "train.bfloat16.forward")
def HalfIsSingle(original: Original, self: ReferenceTrainEngine, spec: TrainSpec, rank: RankContext) -> Any:
    """Computes in float32 where bfloat16 was asked for."""
    dtype, single = spec.dtype, attrs.evolve(spec, dtype="float32")
    info = original(single, rank)
    assert self.trainer is not None
    self.trainer.exporter.dtype = dtype
    return info


PRECISION_ROWS = breaks.rows(
    row("ColumnsInHalf", "Returns columns in the dtype it computes in.", "train.bfloat16.forward",
        start=before(lambda self, spec: setattr(self, "_half", spec.dtype == "bfloat16")),
        forward=after(lambda result, self, outputs: result.with_tokens(**{str(n): result.tokens[n].bfloat16()
            for n in outputs}) if self._half else result)),
)  # fmt: skip


@mutant(ENGINE, killers=("train.bfloat16.steps",))
class HalfGradientScaled(ReferenceTrainEngine):
    """Scales the loss for half precision, and forgets to scale the gradient back."""

    class _Model(Columns):
        def backward(self, loss: Tensor, *, last: bool) -> None:
            super().backward(loss * 8.0, last=last)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        if spec.dtype == "bfloat16":
            replace_model(self, self._Model)
        return info


@breaks("train_step", "train.bfloat16.tiny_steps",
        start=before(lambda self, spec: setattr(self, "_half", spec.dtype == "bfloat16")))  # fmt: skip
def MasterInHalf(original: Original, self: Any) -> Any:
    """Holds its master weights in bfloat16 in a bfloat16 run."""
    report = original()
    if self._half:
        with torch.no_grad():
            for tensor in parameters(self).values():
                tensor.copy_(tensor.bfloat16())
    return report


@breaks("start", "train.checkpointing.same")
def RecomputedLayerDropped(original: Original, self: ReferenceTrainEngine) -> Any:
    """Loses the gradient of the first layer when activations are computed twice."""
    info = original()
    if self.config.activation_checkpointing:
        for parameter in hugging_face(self).model.layers[0].parameters():
            parameter.register_hook(lambda gradient: gradient * 0.0)
    return info


@breaks("start", "train.checkpointing.recomputed")
def RecomputedByNobody(original: Original, self: ReferenceTrainEngine) -> Any:
    """Says that activations are computed twice, and keeps them: layers that are not in training do not look."""
    info = original()
    if self.config.activation_checkpointing:
        hugging_face(self).eval()
    return info


@breaks("start", "train.checkpointing.recomputed")
def AllIsKept(original: Original, self: ReferenceTrainEngine) -> Any:
    """Has every product kept where activations are said to be computed twice."""
    info = original()
    if self.config.activation_checkpointing:
        keep = partial(create_selective_checkpoint_contexts, lambda *_given, **_more: CheckpointPolicy.MUST_SAVE)
        given = {"use_reentrant": False, "context_fn": keep}
        hugging_face(self).gradient_checkpointing_enable(gradient_checkpointing_kwargs=given)
    return info


@breaks("columns", "train.value.forward", "train.value.step", base=OtherModel, part=("kind", Columns))
def ValuesAfterToken(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Reads the value of a token after the token."""
    if outputs != {Output.VALUES}:
        return original()
    lengths = batch.lengths + 1  # one token more, so that the value after the last one is there
    ends = lengths.cumsum(0)
    own = torch.ones(int(ends[-1]), dtype=torch.bool, device=batch.device)
    own[ends - 1] = False
    columns = {}
    for name in ("input_ids", "loss_mask"):
        longer = torch.zeros(len(own), dtype=batch.tokens[name].dtype, device=batch.device)
        longer[own] = batch.tokens[name]
        columns[name] = longer
    values = original(Batch.of(columns, {}, lengths), outputs)[Output.VALUES]
    return {Output.VALUES: values.roll(-1)[own]}


@breaks("start", "train.value.step", "train.value.forward")
def CriticHeadFrozen(original: Original, self: ReferenceTrainEngine, spec: TrainSpec) -> Any:
    """Trains a critic's backbone and leaves its head."""
    info = original()
    if spec.head is Head.VALUE:
        for name, tensor in parameters(self).items():
            if name.startswith("score."):
                tensor.register_hook(lambda gradient: gradient * 0.0)  # type: ignore[no-untyped-call]
    return info
