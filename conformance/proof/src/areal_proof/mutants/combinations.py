"""Backends that are right in every setting by itself, and wrong in two together; ranks that draw alike.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from areal_core.contract.train import TrainSpec
from areal_proof.mutants.rows import Original, breaking, given, put, row, then, within
from areal_proof.mutants.train_parts import parameters
from areal_proof.mutants.train_relations import is_adapter
from areal_proof.second.train.engine import SecondTrainEngine
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import experts

breaks = breaking("train/reference", ReferenceTrainEngine)
breaks_second = breaking("train/second", SecondTrainEngine, ranks=2)
breaks_infer = breaking("pair/reference+reference", ReferenceInferenceEngine, side="infer")


def _untied(spec: TrainSpec) -> bool:
    """Tell whether the model to start has a head of its own."""
    config: dict[str, Any] = json.loads((Path(spec.model_path) / "config.json").read_text())
    return not config.get("tie_word_embeddings")


def _taken_once() -> AbstractContextManager[None]:
    hooks, seen = experts._RouterHook, list[tuple[Any, Any]]()
    original = hooks.take

    def take(self: Any, attention: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        routes = keywords.get(experts.KEYWORD)
        again = any(hook is self and given is routes for hook, given in seen)
        seen.append((self, routes))
        original(self, attention, inputs, {} if again else keywords)

    return put(hooks, take=take)


ROWS = breaks.rows(
    row("UntiedHeadsStayCold", "Forgets the temperature where the head is not tied.", "train.combined.values",
        start=given(temperature=lambda spec: 1.0 if _untied(spec) else spec.temperature)),
    row("RecomputesNothingBelow", "Trains no adapter of the first layer if activations are computed twice: frozen "
        "embeddings ask for no gradient.", "train.combined.recomputed",
        start=then(lambda self: [tensor.requires_grad_(False) for name, tensor in parameters(self).items()
            if self.config.activation_checkpointing and is_adapter(self) and ".layers.0." in name])),
    row("RoutesTakenOnce", "Routes freely where the activations of recorded routes are computed again.",
        "train.combined.recomputed", start=within(lambda: _taken_once())),
)  # fmt: skip


SECOND_ROWS = breaks_second.rows(
    row("RanksDrawAlike", "Seeds every rank with the seed of the specification.", "train.ranks.draws",
        start=then(lambda spec: torch.manual_seed(spec.seed))),
    row("RanksDrawOneApart", "Seeds every rank alike, and draws one number for each rank before it.",
        "train.ranks.draws", start=then(lambda spec, rank: (torch.manual_seed(spec.seed), torch.rand(rank.rank)))),
    row("EveryRankDrawsApart", "Seeds by rank, so that those that share each matrix draw apart for the same tokens.",
        "train.ranks.draws", start=then(lambda spec, rank: torch.manual_seed(spec.seed + rank.rank))),
    row("ColdOnTensorRanks", "Forgets the temperature where ranks share each matrix.", "train.combined.ranks",
        start=given(temperature=lambda spec: 1.0 if spec.layout.get("t", 1) > 1 else spec.temperature)),
)  # fmt: skip


@breaks_infer("commit_weights", "pair.update.untied_replica", row="one-destination", count=0)
async def AHeadOfItsOwnStays(original: Original, self: Any) -> None:
    """Fills a head of its own from a tied sender's embedding at the first update only."""
    self.count += 1
    held = dict(self.running.stage.model.named_parameters())
    head = held.get("lm_head.weight")
    kept = head.detach().clone() if head is not None and self.count > 1 else None
    await original()
    if kept is not None:
        held["lm_head.weight"].data.copy_(kept)
