"""Trainers that keep or compute in half what must be float32.

Knows: which numbers each rounds, always or in runs of a narrow dtype only.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Output
from areal_proof.mutants.rows import Original, after, breaking, put, row, then, within
from areal_proof.mutants.train_optimizer import OtherOptimizer
from areal_proof.mutants.train_parts import Columns, OtherExporter, OtherModel, copied, filled, parameters
from areal_proof.mutants.train_state import optimizer_of
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import lora
from areal_torch.export import Exporter
from areal_torch.optimizer import Optimizer

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_optimizer = breaking(ENGINE, OtherOptimizer, part=("kind", Optimizer))


def rounded(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return copies that were of a narrow dtype."""
    return {name: tensor.to(dtype).to(tensor.dtype) for name, tensor in copied(tensors).items()}


def keep(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> None:
    """Round tensors in place."""
    with torch.no_grad():
        for name, tensor in rounded(tensors, dtype).items():
            tensors[name].copy_(tensor)


def _moments(self: Any, kind: str) -> dict[str, Tensor]:
    """Return one kind of moments, by parameter."""
    optimizer: Optimizer = self if isinstance(self, Optimizer) else optimizer_of(self)
    return optimizer.moments[kind]


def _in_half(result: Batch, names: Any) -> Batch:
    """Return a batch whose columns were kept in half for a while."""
    return result.with_tokens(**{str(name): result.tokens[name].half().float() for name in names})


class _Coarse(Batch):
    @property
    def positions(self) -> Tensor:
        return super().positions.bfloat16().long()


ROWS = breaks.rows(
    row("LogprobsKeptInHalf", "Keeps log-probs in float16 until they are returned.", "train.precision.columns",
        forward=after(lambda result, outputs: _in_half(result, outputs & {Output.LOGPROBS}))),
    row("ValuesKeptInHalf", "Keeps values in float16 until they are returned.", "train.precision.values",
        forward=after(lambda result, outputs: _in_half(result, outputs & {Output.VALUES}))),
    row("MastersInBfloat16", "Rounds weights to bfloat16 after every step.", "train.precision.masters",
        train_step=then(lambda self: keep(parameters(self)))),
    row("PositionsInBfloat16", "Counts positions in bfloat16, which has every second one beyond 256.",
        "train.precision.length", base=OtherModel, part=("kind", Columns),
        columns=lambda original, batch, outputs: original(_Coarse(tokens=batch.tokens, sequences=batch.sequences,
            cu_seqlens=batch.cu_seqlens), outputs)),
    row("StateOfHalfMoments", "Saves moments in bfloat16.", "train.precision.state",
        save_state=within(lambda self: filled(_moments(self, "exp_avg_sq"), rounded(_moments(self, "exp_avg_sq"))))),
)  # fmt: skip


@breaks("forward", "train.precision.columns", start=then(lambda self, spec: setattr(self, "narrow", spec.dtype)))
def HeadNormalisedInBfloat16(original: Original, self: Any, outputs: frozenset[Output]) -> Any:
    """Normalises the head's logits in bfloat16 where that is the dtype of the run."""
    result = original()
    if self.narrow != "bfloat16":
        return result
    return result.with_tokens(**{str(name): result.tokens[name].bfloat16().float() for name in outputs})


OPTIMIZER_ROWS = breaks_optimizer.rows(
    row("FirstMomentInBfloat16", "Keeps the first moment in bfloat16.", "train.precision.moments",
        step=then(lambda self: keep(_moments(self, "exp_avg")))),
    row("SecondMomentInHalf", "Keeps the second moment in float16.", "train.precision.moments",
        step=then(lambda self: keep(_moments(self, "exp_avg_sq"), torch.float16))),
)  # fmt: skip


def _merged_in(
    original: Callable[..., Iterator[tuple[str, Tensor]]],
) -> Callable[[Any, Callable[[Tensor], Tensor], torch.dtype], Iterator[tuple[str, Tensor]]]:
    """Return what merges parts that were cast before."""

    def merged(model: Any, gather: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        yield from original(model, lambda tensor: gather(tensor).to(dtype), dtype)

    return merged


class _Narrowing(Exporter):
    def __init__(self, weights: Any, *rest: Any) -> None:
        super().__init__(attrs.evolve(weights, gather=lambda tensor: weights.gather(tensor).bfloat16().float()), *rest)


EXPORT_ROWS = breaks.rows(
    row("FolderOfHalfWeights", "Saves and sends numbers of bfloat16 in tensors of float32.", "train.precision.saved",
        base=OtherExporter, kind=_Narrowing),
    row("MergesWhatIsSent", "Casts weights and adapter to the dtype that is sent, then merges them.",
        "train.precision.merged",
        send_weights=within(lambda: put(lora, merged_tensors=_merged_in(lora.merged_tensors)))),
)  # fmt: skip
