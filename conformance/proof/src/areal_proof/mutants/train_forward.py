"""Trainers that score wrongly, always or beyond a size.

Knows: what each computes instead.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import EngineInfo, Output, RankContext, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, before, breaking, given, row, then, within
from areal_proof.mutants.train_optimizer import OtherOptimizer, OtherSpec
from areal_proof.mutants.train_parts import Columns, OtherModel, hugging_face, replace_model, replaced
from areal_reference.train.engine import PlainModel, ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


@breaks("columns", "train.forward.entropy", base=OtherModel, part=("kind", Columns))
def EntropyAtTemperatureOne(original: Original, self: Columns, batch: Batch) -> Any:
    """Divides the logits by the temperature for log-probs, and not for the entropy."""
    result = dict(original())
    if Output.ENTROPY in result:
        packed = self.inner.packed
        divisor, packed.divisor = packed.divisor, 1.0
        result[Output.ENTROPY] = original(batch, frozenset({Output.ENTROPY}))[Output.ENTROPY]
        packed.divisor = divisor
    return result


@breaks("forward", "train.forward.any_mask")
def LastSequenceOfOneUnscored(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Takes a sequence with a single scored token, when it is the last, for padding."""
    result = original()
    if not batch.num_sequences or batch.num_sequences == 1:
        return result
    start = int(batch.cu_seqlens[-2])
    if int(batch.tokens["loss_mask"][start:].sum()) != 1:
        return result
    cut = {str(name): result.tokens[name].clone() for name in outputs}
    for column in cut.values():
        column[start:] = 0.0
    return result.with_tokens(**cut)


class _Wrapping(Batch):
    @property
    def positions(self) -> Tensor:
        return super().positions % 128


@breaks("forward", "train.forward.order", "train.forward.any_mask")
def RowsStaySorted(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Sorts sequences by length, and forgets to put the columns back in order."""
    order = sorted(range(batch.num_sequences), key=lambda row: int(batch.lengths[row]))
    sorted_result = original(batch.select(order), outputs)
    return batch.with_tokens(**{str(name): sorted_result.tokens[name] for name in outputs})


class _FirstTwo(Columns):
    calls = 0

    def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
        """Score what comes first."""
        self.calls += 1
        result = super().columns(batch, outputs)
        return result if self.calls <= 2 else {name: column * 0.0 for name, column in result.items()}


@breaks("forward", "train.forward.causal")
def LooksAhead(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Lets a token's score know, a little, whether a large token comes later in its sequence."""
    result = original()
    ahead = 1e-4 * batch.tokens["input_ids"].roll(-1).float() * batch.tokens["loss_mask"]
    ahead[batch.positions == 0] = 0.0
    return result.with_tokens(**{str(name): result.tokens[name] + ahead for name in outputs})


@breaks("forward", "train.forward.leaves_batch")
def ForwardWritesIntoBatch(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Adds its columns to the batch it was given."""
    result = original()
    for name in outputs:
        batch.tokens[str(name)] = result.tokens[name]
    return result


@breaks("start", "train.forward.repeatable", "train.forward.logprobs")
def DropoutLeftOn(original: Original, self: ReferenceTrainEngine) -> Any:
    """Drops one in ten inputs of the attention, in scoring too."""
    info = original()
    for layer in hugging_face(self).model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs: (torch.nn.functional.dropout(inputs[0], 0.1, training=True),)
        )
    return info


@breaks("forward", "train.forward.fresh_tokens", start=before(lambda self: setattr(self, "seen", {})))
def RemembersByShape(original: Original, self: Any, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Gives a batch of known lengths the columns it computed for the first of that shape."""
    key = (tuple(batch.lengths.tolist()), outputs, self.version)
    if key not in self.seen:
        self.seen[key] = original()
    return batch.with_tokens(**{str(name): self.seen[key].tokens[name] for name in outputs})


@breaks("forward", "train.forward.follows_weights", "train.state.loaded_weights", incident="verl#3821",
    row="served-policy-changes", scores=None, start=then(lambda self: setattr(self, "scores", None)),
    close=before(lambda self: setattr(self, "scores", None)))  # fmt: skip
def ScoresWithCopy(original: Original, self: Any) -> Any:
    """Scores with a copy of the model that it made when it scored first."""
    if self.scores is None:
        self.scores = PlainModel(copy.deepcopy(self.trainer.model.packed))
    with replaced(self, model=self.scores):
        return original()


ROWS = breaks.rows(
    row("LogprobsShifted", "Gives the log-prob of token t at position t - 1, as a model's logits lie.",
        "train.forward.logprobs", "train.forward.off_mask", row="logprob-gap",
        forward=after(lambda result, outputs: result.with_tokens(**{str(name): result.tokens[name].roll(-1)
            for name in outputs if name is Output.LOGPROBS}))),
    row("TemperatureIgnored", "Scores and trains at temperature 1 whatever the spec says.",
        "train.forward.temperature", "train.step.gradient_temperature", incident="AReaL#1290", row="logprob-gap",
        start=given(temperature=1.0)),
    row("TemperatureMultiplies", "Multiplies the logits by the temperature.", "train.forward.temperature",
        "train.forward.entropy", start=given(temperature=lambda spec: 1.0 / spec.temperature)),
    row("ScoresOffMask", "Scores every token, on the mask or not.", "train.forward.off_mask", "train.forward.logprobs",
        forward=lambda original, batch,
            outputs: original(batch.with_tokens(loss_mask=torch.ones_like(batch.tokens["loss_mask"])),
            outputs).with_tokens(loss_mask=batch.tokens["loss_mask"])),
    row("LogprobsClamped", "Gives no log-prob below -20, for stability.", "train.forward.extreme_logits",
        forward=after(lambda result, outputs: result.with_tokens(**{str(name): result.tokens[name].clamp(min=-20.0)
            for name in outputs}))),
    row("DropsOtherColumns", "Returns the columns it knows and drops the others.", "train.forward.leaves_batch",
        forward=after(lambda result: Batch.from_flat({name: column for name, column in result.flat().items()
            if name not in ("tokens/routes", "sequences/image")}))),
    row("ScoringDraws", "Draws a random number whenever it scores.", "train.forward.no_effect",
        forward=before(lambda: torch.rand(1))),
    row("ScoringForgetsVersion", "Sets the version back to 0 when it scores.", "train.forward.no_effect",
        forward=before(lambda self: setattr(self, "version", 0))),
    row("EmptyBatchRefused", "Refuses a shard without sequences.", "train.forward.empty",
        forward=before(lambda batch: BatchError("the batch is empty", why="there is nothing to score")
            if not batch.num_sequences else None)),
    row("ColumnsInDouble", "Returns its columns in float64.", "train.forward.off_mask",
        forward=after(lambda result, outputs: result.with_tokens(**{str(name): result.tokens[name].double()
            for name in outputs}))),
    row("EntropyInBits", "Gives the entropy in bits.", "train.forward.entropy", "train.forward.temperature",
        forward=after(lambda result, outputs: result.with_tokens(entropy=result.tokens["entropy"] / math.log(2.0))
            if Output.ENTROPY in outputs else result)),
    row("EntropyOnlyBesideLogprobs", "Leaves the entropy at 0 when it is asked for alone.", "train.forward.outputs",
        "train.forward.entropy",
        forward=after(lambda result, outputs: result.with_tokens(entropy=torch.zeros_like(result.tokens["entropy"]))
            if outputs == {Output.ENTROPY} else result)),
    row("PositionsWrap", "Counts positions in a byte: beyond 127 they begin again.", "train.forward.full_length",
        base=OtherModel, part=("kind", Columns),
        columns=lambda original, batch, outputs: original(_Wrapping(tokens=batch.tokens, sequences=batch.sequences,
            cu_seqlens=batch.cu_seqlens), outputs)),
    row("LaterMicrobatchesUnscored", "Scores only the first two micro-batches.", "train.forward.budget",
        "train.forward.any_mask",
        forward=within(lambda self: replaced(self, model=_FirstTwo(self.trainer.model)))),
)  # fmt: skip


@breaks("forward", "train.forward.many_sequences", row="logprob-gap")
def SortsManyForgetsOrder(original: Original, batch: Batch, outputs: frozenset[Output]) -> Any:
    """Sorts more than 24 sequences by length to pack them, and puts those of one length back in reverse."""
    result = original()
    lengths, starts = batch.lengths.tolist(), batch.cu_seqlens.tolist()
    if len(lengths) <= 24:
        return result
    rows: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        rows.setdefault(length, []).append(number)
    order = list(range(len(lengths)))
    for alike in rows.values():
        for number, other in zip(alike, reversed(alike), strict=True):
            order[number] = other
    index = torch.cat([torch.arange(starts[at], starts[at] + lengths[at]) for at in order])
    return result.with_tokens(**{str(name): result.tokens[name][index] for name in outputs})


@breaks("step", "train.step.adamw_long", base=OtherOptimizer, part=("kind", Optimizer))
def StepCountSaturates(original: Original, self: Optimizer) -> Any:
    """Counts the steps of the bias correction up to 20, and no further."""
    stepped = original()
    for state in self.adam.state.values():
        state["step"].clamp_(max=20.0)
    return stepped


SCALE_ROWS = breaks.rows(
    row("TableCutAt64", "Trains on the first 64 sequences of a shard, and drops the rest.",
        "train.step.many_sequences",
        train_step=lambda original, batch, objective: original(batch.select(list(range(min(64, batch.num_sequences)))),
            objective)),
    row("ClipsAtTenUnasked", "Takes `max_grad_norm` 0 for its own default of 10.", "train.step.large_norm",
        base=OtherSpec, other=lambda spec: attrs.evolve(spec, max_grad_norm=spec.max_grad_norm or 10.0)),
    row("NeighboursSeen", "Lets packed sequences attend to those before them.", "train.forward.neighbours",
        "train.forward.logprobs", "train.step.gradient", incident="verl#2996", row="logprob-gap", base=OtherModel,
        part=("kind", Columns),
        columns=lambda original, batch, outputs: original(Batch.of({"input_ids": batch.tokens["input_ids"],
            "loss_mask": batch.tokens["loss_mask"] & (batch.positions > 0)}, {}, torch.tensor([batch.num_tokens])),
            outputs)),
)  # fmt: skip


@breaks("step", "train.step.large_norm", base=OtherOptimizer, part=("kind", Optimizer))
@torch.no_grad()
def LargeGradientsClamped(original: Original, self: Any) -> Any:
    """Clamps every number of a gradient to 20, untold."""
    for gradient in self.gradients(self.held):
        gradient.clamp_(-20.0, 20.0)
    return original()


@mutant(ENGINE, killers=("train.bfloat16.accumulates",))
class SumsInHalf(ReferenceTrainEngine):
    """Adds up the gradients of micro-batches in bfloat16 in a bfloat16 run."""

    class _Model(Columns):
        def backward(self, loss: Tensor, *, last: bool) -> None:
            super().backward(loss, last=last)
            for tensor in self.inner.packed.hf.parameters():
                if tensor.grad is not None:
                    tensor.grad.copy_(tensor.grad.bfloat16())

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        if spec.dtype == "bfloat16":
            replace_model(self, self._Model)
        return info
