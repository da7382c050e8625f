"""Trainers that learn otherwise when they are stopped again, disturbed, or given the same lesson in another form.

Knows: one defect each, of one role where others are right.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import Head, Objective
from areal_proof.mutants.rows import Original, before, breaking, on, put, row, then, within
from areal_proof.mutants.train_parts import OtherObjective, Through, parameters
from areal_proof.mutants.train_state import optimizer_of
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.trainer import running

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)
breaks_objective = breaking(ENGINE, OtherObjective, part=("through", Through))


def is_critic(engine: ReferenceTrainEngine) -> bool:
    """Tell whether a started engine has a value head."""
    return running(engine.trainer).limits.head is Head.VALUE


def is_adapter(engine: ReferenceTrainEngine) -> bool:
    """Tell whether a started engine trains an adapter."""
    return any("lora" in name for name in parameters(engine))


def computes_in_half(engine: ReferenceTrainEngine) -> bool:
    """Tell whether a started engine computes in bfloat16."""
    model: Any = running(engine.trainer).model  # Any: the engine's own
    return model.packed.autocast is torch.bfloat16


@contextmanager
def rounding(engine: ReferenceTrainEngine, ends: tuple[str, ...]) -> Iterator[None]:
    """Afterwards, round the moments of these parameters to bfloat16."""
    yield
    for moments in optimizer_of(engine).moments.values():
        for name, tensor in moments.items():
            if name.endswith(ends):
                tensor.copy_(tensor.bfloat16().float())


@breaks("save_state", "train.resumed.actor", "train.resumed.critic", "train.resumed.adapter", loaded=0,
        load_state=then(lambda self: setattr(self, "loaded", optimizer_of(self).steps)))  # fmt: skip
def CountsFromItsOwnStart(original: Original, self: Any) -> None:
    """Saves the steps made since the state it was resumed from: right once, and wrong from the second stop on."""
    with put(optimizer_of(self), steps=optimizer_of(self).steps - self.loaded):
        original()


@breaks("train_step", "train.presented.adapter")
def LastMicrobatchTrainsA(original: Original, self: Any, batch: Batch, objective: Objective) -> Any:
    """Gives A of an adapter the gradient of the last micro-batch only, as where a buffer is overwritten."""
    if not is_adapter(self):
        return original()

    class Dropping(Through):
        def loss(self, columns: Mapping[str, Tensor], part: Batch, normalizer: Tensor) -> Any:
            for name, parameter in held.items():
                if "lora_a" in name.lower():
                    parameter.grad = None
            return self.inner.loss(columns, part, normalizer)

    held = parameters(self)
    return original(batch, Dropping(objective))


def _of(role: Callable[[ReferenceTrainEngine], bool], effect: Callable[[], object]) -> Callable[[Any], None]:
    """Return an effect that only engines of a role suffer."""

    def suffered(self: Any) -> None:
        if role(self):
            effect()

    return suffered


RESUMED_ROWS = breaks.rows(
    row("CriticForgetsItsHeadsPast", "Resumes a critic without the moments of its head in full.",
        "train.resumed.critic", load_state=within(lambda self: rounding(self, ("score.weight",)))),
    row("AdapterForgetsPartOfItsPast", "Resumes an adapter with moments of B in bfloat16.", "train.resumed.adapter",
        load_state=within(lambda self: rounding(self, ("lora_B", "lora_B.weight", "lora_b", "lora_b.weight")))),
    row("HalfLoadsWhatItComputesWith", "In bfloat16, loads masters rounded to what they compute as.",
        "train.resumed.bfloat16", "train.state.exact_bfloat16",
        load_state=then(lambda self: [tensor.data.copy_(tensor.bfloat16().float())
            for tensor in parameters(self).values() if computes_in_half(self)])),
)  # fmt: skip


def is_frozen(engine: ReferenceTrainEngine) -> bool:
    """Tell whether a started engine makes no steps."""
    return running(engine.trainer).optimizer is None


def _rounded(engine: ReferenceTrainEngine) -> None:
    for tensor in parameters(engine).values():
        tensor.data.copy_(tensor.bfloat16().float())


@contextmanager
def _keeping_version(engine: ReferenceTrainEngine, kept: bool) -> Iterator[None]:
    version = engine.version
    yield
    if kept:
        engine.version = version


FROZEN_ROWS = breaks.rows(
    row("FrozenKnowsItsOwnStatesAlone", "Takes the version of a frozen role's state only where it saved one itself.",
        "train.resumed.reference", saved=False, save_state=then(lambda self: setattr(self, "saved", True)),
        load_state=within(lambda self: _keeping_version(self, is_frozen(self) and not self.saved))),
    row("FrozenComesBackRounded", "Loads a frozen role's weights rounded to bfloat16.",
        "train.resumed.reference", "train.frozen.role",
        load_state=then(lambda self: _rounded(self) if is_frozen(self) else None)),
)  # fmt: skip


DISTURBED_ROWS = breaks.rows(
    row("FailuresCountAsSteps", "Counts a step whose objective raised in its schedule.", "train.disturbed.actor",
        train_step=on(ZeroDivisionError, lambda self: setattr(optimizer_of(self), "steps",
            optimizer_of(self).steps + 1))),
    row("RefusalsSeedAnew", "Seeds its random numbers anew where a batch is refused.", "train.disturbed.actor",
        train_step=on(ValueError, lambda: torch.manual_seed(1))),
    row("ValuesAreDrawn", "Draws a random number whenever it scores values.", "train.disturbed.critic",
        forward=then(_of(is_critic, lambda: torch.rand(1)))),
    row("AdaptersAreSentWithNoise", "Draws a random number whenever it merges an adapter to send it.",
        "train.disturbed.adapter", send_weights=before(_of(is_adapter, lambda: torch.rand(1)))),
)  # fmt: skip


def _untrained(batch: Batch) -> int:
    """Return how many sequences of a batch are not trained on at all."""
    counts = torch.segment_reduce(batch.tokens["loss_mask"].float(), "sum", lengths=batch.lengths.long())
    return int((counts == 0).sum())


def _last(batch: Batch) -> Tensor:
    """Return where the last token of each sequence is, bool [T]."""
    last = torch.zeros(batch.num_tokens, dtype=torch.bool)
    last[batch.cu_seqlens[1:].long() - 1] = True
    return last


PRESENTED_ROWS = breaks_objective.rows(
    row("StrangersCountALittle", "Counts a sequence of which nothing is trained as a tenth of a token.",
        "train.presented.actor", "train.presented.critic",
        normalizer=lambda original, batch: original() + 0.1 * _untrained(batch)),
    row("EndsCountDouble", "Lets the last token of each sequence count twice in a critic's normaliser.",
        "train.presented.critic", normalizer=lambda self, original, batch: original() + (
            float((_last(batch) & batch.tokens["loss_mask"]).sum()) if "returns" in self.columns else 0.0)),
)  # fmt: skip
