"""Trainers that score wrongly.

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
from areal_proof.mutants.train_parts import Columns, hugging_face, replace, replace_model
from areal_reference.train.engine import PlainModel, ReferenceTrainEngine
from areal_torch.model import PackedModel

ENGINE = "train/reference"


@mutant(ENGINE, killers=("train.forward.logprobs", "train.forward.off_mask"), row="logprob-gap")
class LogprobsShifted(ReferenceTrainEngine):
    """Gives the log-prob of token t at position t - 1, as a model's logits lie."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        shifted = {str(name): result.tokens[name].roll(-1) for name in outputs if name is Output.LOGPROBS}
        return result.with_tokens(**shifted)


@mutant(ENGINE, killers=("train.forward.entropy", "train.forward.temperature"))
class EntropyInBits(ReferenceTrainEngine):
    """Gives the entropy in bits."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        if Output.ENTROPY in outputs:
            result = result.with_tokens(entropy=result.tokens["entropy"] / math.log(2.0))
        return result


@mutant(
    ENGINE,
    killers=("train.forward.temperature", "train.step.gradient_temperature"),
    incident="AReaL#1290",
    row="logprob-gap",
)
class TemperatureIgnored(ReferenceTrainEngine):
    """Scores and trains at temperature 1 whatever the spec says."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return super().start(attrs.evolve(spec, temperature=1.0), rank)


@mutant(ENGINE, killers=("train.forward.temperature", "train.forward.entropy"))
class TemperatureMultiplies(ReferenceTrainEngine):
    """Multiplies the logits by the temperature."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        return super().start(attrs.evolve(spec, temperature=1.0 / spec.temperature), rank)


@mutant(ENGINE, killers=("train.forward.entropy",))
class EntropyAtTemperatureOne(ReferenceTrainEngine):
    """Divides the logits by the temperature for log-probs, and not for the entropy."""

    class _Model(Columns):
        def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
            result = dict(super().columns(batch, outputs))
            if Output.ENTROPY in result:
                packed = self.inner.packed
                divisor, packed.divisor = packed.divisor, 1.0
                result[Output.ENTROPY] = super().columns(batch, frozenset({Output.ENTROPY}))[Output.ENTROPY]
                packed.divisor = divisor
            return result

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        replace_model(self, self._Model)
        return info


@mutant(ENGINE, killers=("train.forward.off_mask", "train.forward.logprobs"))
class ScoresOffMask(ReferenceTrainEngine):
    """Scores every token, on the mask or not."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        everywhere = torch.ones_like(batch.tokens["loss_mask"])
        result = super().forward(batch.with_tokens(loss_mask=everywhere), outputs)
        return result.with_tokens(loss_mask=batch.tokens["loss_mask"])


@mutant(ENGINE, killers=("train.forward.any_mask",))
class LastSequenceOfOneUnscored(ReferenceTrainEngine):
    """Takes a sequence with a single scored token, when it is the last, for padding."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        if not batch.num_sequences or batch.num_sequences == 1:
            return result
        start = int(batch.cu_seqlens[-2])
        if int(batch.tokens["loss_mask"][start:].sum()) != 1:
            return result
        cut = {str(name): result.tokens[name].clone() for name in outputs}
        for column in cut.values():
            column[start:] = 0.0
        return result.with_tokens(**cut)


@mutant(ENGINE, killers=("train.forward.full_length",))
class PositionsWrap(ReferenceTrainEngine):
    """Counts positions in a byte: beyond 127 they begin again."""

    class _Batch(Batch):
        @property
        def positions(self) -> Tensor:
            return super().positions % 128

    class _Model(Columns):
        def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
            wrapped = PositionsWrap._Batch(tokens=batch.tokens, sequences=batch.sequences, cu_seqlens=batch.cu_seqlens)
            return super().columns(wrapped, outputs)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        replace_model(self, self._Model)
        return info


@mutant(ENGINE, killers=("train.forward.extreme_logits",))
class LogprobsClamped(ReferenceTrainEngine):
    """Gives no log-prob below -20, for stability."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        clamped = {str(name): result.tokens[name].clamp(min=-20.0) for name in outputs}
        return result.with_tokens(**clamped)


@mutant(ENGINE, killers=("train.forward.outputs", "train.forward.entropy"))
class EntropyOnlyBesideLogprobs(ReferenceTrainEngine):
    """Leaves the entropy at 0 when it is asked for alone."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        if outputs == {Output.ENTROPY}:
            result = result.with_tokens(entropy=torch.zeros_like(result.tokens["entropy"]))
        return result


@mutant(
    ENGINE,
    killers=("train.forward.neighbours", "train.forward.logprobs", "train.step.gradient"),
    incident="verl#2996",
    row="logprob-gap",
)
class NeighboursSeen(ReferenceTrainEngine):
    """Lets packed sequences attend to those before them."""

    class _Model(Columns):
        def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
            one = Batch.of(
                {
                    "input_ids": batch.tokens["input_ids"],
                    "loss_mask": batch.tokens["loss_mask"] & (batch.positions > 0),
                },
                {},
                torch.tensor([batch.num_tokens]),
            )
            return super().columns(one, outputs)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        replace_model(self, self._Model)
        return info


@mutant(ENGINE, killers=("train.forward.order", "train.forward.any_mask"))
class RowsStaySorted(ReferenceTrainEngine):
    """Sorts sequences by length, and forgets to put the columns back in order."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        order = sorted(range(batch.num_sequences), key=lambda row: int(batch.lengths[row]))
        sorted_result = super().forward(batch.select(order), outputs)
        return batch.with_tokens(**{str(name): sorted_result.tokens[name] for name in outputs})


@mutant(ENGINE, killers=("train.forward.budget", "train.forward.any_mask"))
class LaterMicrobatchesUnscored(ReferenceTrainEngine):
    """Scores only the first two micro-batches."""

    class _Model(Columns):
        calls = 0

        def columns(self, batch: Batch, outputs: frozenset[Output]) -> Mapping[str, Tensor]:
            self.calls += 1
            result = super().columns(batch, outputs)
            return result if self.calls <= 2 else {name: column * 0.0 for name, column in result.items()}

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        assert self._trainer is not None
        whole = self._trainer
        replace_model(self, self._Model)
        try:
            return super().forward(batch, outputs)
        finally:
            self._trainer = whole


@mutant(ENGINE, killers=("train.forward.causal",))
class LooksAhead(ReferenceTrainEngine):
    """Lets a token's score know, a little, whether a large token comes later in its sequence."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        ahead = 1e-4 * batch.tokens["input_ids"].roll(-1).float() * batch.tokens["loss_mask"]
        ahead[batch.positions == 0] = 0.0
        return result.with_tokens(**{str(name): result.tokens[name] + ahead for name in outputs})


@mutant(ENGINE, killers=("train.forward.leaves_batch",))
class ForwardWritesIntoBatch(ReferenceTrainEngine):
    """Adds its columns to the batch it was given."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        for name in outputs:
            batch.tokens[str(name)] = result.tokens[name]
        return result


@mutant(ENGINE, killers=("train.forward.leaves_batch",))
class DropsOtherColumns(ReferenceTrainEngine):
    """Returns the columns it knows and drops the others."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        flat = {
            name: column for name, column in result.flat().items() if name not in ("tokens/routes", "sequences/image")
        }
        return Batch.from_flat(flat)


@mutant(ENGINE, killers=("train.forward.repeatable", "train.forward.logprobs"))
class DropoutLeftOn(ReferenceTrainEngine):
    """Drops one in ten inputs of the attention, in scoring too."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        for layer in hugging_face(self).model.layers:
            layer.self_attn.o_proj.register_forward_pre_hook(
                lambda module, inputs: (torch.nn.functional.dropout(inputs[0], 0.1, training=True),)
            )
        return info


@mutant(ENGINE, killers=("train.forward.fresh_tokens",))
class RemembersByShape(ReferenceTrainEngine):
    """Gives a batch of known lengths the columns it computed for the first of that shape."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._seen: dict[Any, Batch] = {}
        return super().start(spec, rank)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        key = (tuple(batch.lengths.tolist()), outputs, self.version)
        if key not in self._seen:
            self._seen[key] = super().forward(batch, outputs)
        return batch.with_tokens(**{str(name): self._seen[key].tokens[name] for name in outputs})


@mutant(ENGINE, killers=("train.forward.no_effect",))
class ScoringDraws(ReferenceTrainEngine):
    """Draws a random number whenever it scores."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        torch.rand(1)
        return super().forward(batch, outputs)


@mutant(ENGINE, killers=("train.forward.no_effect",))
class ScoringForgetsVersion(ReferenceTrainEngine):
    """Sets the version back to 0 when it scores."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        self.version = 0
        return super().forward(batch, outputs)


@mutant(
    ENGINE,
    killers=("train.forward.follows_weights", "train.state.loaded_weights"),
    incident="verl#3821",
    row="served-policy-changes",
)
class ScoresWithCopy(ReferenceTrainEngine):
    """Scores with a copy of the model that it made when it scored first."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        info = super().start(spec, rank)
        self._copy: PlainModel | None = None
        return info

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        assert self._trainer is not None
        whole = self._trainer
        if self._copy is None:
            packed: PackedModel = copy.deepcopy(whole.model.packed)  # type: ignore[union-attr]
            self._copy = PlainModel(packed)
        replace(self, model=self._copy)
        try:
            return super().forward(batch, outputs)
        finally:
            self._trainer = whole

    def close(self) -> None:
        self._copy = None
        super().close()


@mutant(ENGINE, killers=("train.forward.empty",))
class EmptyBatchRefused(ReferenceTrainEngine):
    """Refuses a shard without sequences."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        if not batch.num_sequences:
            raise BatchError("the batch is empty", why="there is nothing to score")
        return super().forward(batch, outputs)


@mutant(ENGINE, killers=("train.forward.off_mask",))
class ColumnsInDouble(ReferenceTrainEngine):
    """Returns its columns in float64."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        result = super().forward(batch, outputs)
        return result.with_tokens(**{str(name): result.tokens[name].double() for name in outputs})
