"""Batches with the columns an algorithm adds, and the toy model the objectives are tested on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from areal_algorithms.advantages import compute_advantages
from areal_core.algorithms.config import AdvantageConfig, AlgorithmConfig
from areal_core.algorithms.plan import estimator_spec
from areal_core.algorithms.sums import add_sums
from areal_core.contract.batch import STOP_CODES, Batch
from areal_core.contract.data import StopReason
from areal_core.contract.train import Objective, Output, Sum
from areal_core.plugins.registry import default_registry
from areal_torch.testing.batches import VOCAB_SIZE


def packed(
    masks: Sequence[Sequence[int]],
    *,
    rewards: Sequence[float] | None = None,
    stops: Sequence[StopReason] | None = None,
    groups: Sequence[int] | None = None,
    **tokens: Sequence[float],
) -> Batch:
    """Build a batch from loss masks; further token columns are given flat, over all sequences."""
    flat = [bool(bit) for row in masks for bit in row]
    columns = {
        "input_ids": torch.arange(len(flat)) % VOCAB_SIZE,
        "loss_mask": torch.tensor(flat, dtype=torch.bool),
        "logprobs": torch.zeros(len(flat)),
        "versions": torch.where(torch.tensor(flat, dtype=torch.bool), 0, -1).to(torch.int32),
        **{name: torch.as_tensor(column) for name, column in tokens.items()},
    }
    number = len(masks)
    stop_codes = [STOP_CODES.index(stop) for stop in stops or [StopReason.STOP] * number]
    sequences = {
        "reward": torch.tensor(rewards if rewards is not None else [1.0] * number, dtype=torch.float32),
        "stop_reason": torch.tensor(stop_codes, dtype=torch.int8),
        "group": torch.tensor(groups if groups is not None else [0] * number, dtype=torch.int64),
        "episode": torch.arange(number),
    }
    return Batch.of(columns, sequences, torch.tensor([len(row) for row in masks], dtype=torch.int64))


def with_columns(batch: Batch, seed: int) -> Batch:
    """Add every column an objective may read, random but fixed by `seed`, junk off the mask included."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(batch.num_tokens, generator=generator)

    return batch.with_tokens(
        advantages=noise(1.0),
        returns=noise(1.0),
        values=noise(1.0),
        proximal_logprobs=batch.tokens["logprobs"] + noise(0.5),
        proximal_alpha=noise(0.5).abs().clamp(0, 1),
        reference_logprobs=batch.tokens["logprobs"] + noise(1.0),
        fresh=batch.tokens["loss_mask"] & (noise(1.0) > 0),
        behaviour_kept=batch.tokens["loss_mask"] & (noise(1.0) > -1),
    )


def rows(batch: Batch, **columns: Tensor) -> list[dict[str, list[float]]]:
    """Cut columns [T] into one dict of lists per sequence, for the oracle."""
    bounds = batch.cu_seqlens.tolist()
    return [
        {name: column[start:stop].tolist() for name, column in columns.items()}
        for start, stop in itertools.pairwise(bounds)
    ]


def columns_of(batch: Batch, config: AdvantageConfig, *, max_new_tokens: int) -> tuple[Batch, dict[str, Sum]]:
    """Compute advantages as a run does, with the estimator the configuration names."""
    spec = estimator_spec(AlgorithmConfig(advantages=config))
    estimator: Any = default_registry().build("estimator", spec.name, spec.options)
    return compute_advantages(batch, config, estimator, max_new_tokens=max_new_tokens)


class Bigram:
    """A model of one table: what follows a token depends on that token alone. Value head included."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=generator, dtype=torch.float64).to(dtype)
        self.value = torch.randn(VOCAB_SIZE, generator=generator, dtype=torch.float64).to(dtype)
        self.logits.requires_grad_()
        self.value.requires_grad_()

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """Compute every output for a batch; the first token of a sequence gets 0, as the contract says."""
        ids = batch.tokens["input_ids"]
        first = batch.positions == 0
        previous = torch.where(first, 0, ids.roll(1))
        logp = self.logits[previous].log_softmax(-1)
        outputs = {
            Output.LOGPROBS: logp.gather(1, ids[:, None]).squeeze(1),
            Output.ENTROPY: -(logp.exp() * logp).sum(-1),
            Output.VALUES: self.value[previous],
        }
        return {name: torch.where(first, 0.0, column) for name, column in outputs.items()}

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, float, Mapping[str, Sum]]:
        """Do what an engine does with micro-batches: add normalisers first, then add up the shares."""
        self.logits.grad = self.value.grad = None
        normalizer = torch.stack([objective.normalizer(batch) for batch in batches]).sum()
        loss, sums = 0.0, dict[str, Sum]()
        for batch in batches:
            share, metrics = objective.loss(self.columns(batch), batch, normalizer)
            share.backward()
            loss += float(share.detach())
            for name, part in metrics.items():
                assert part.weight >= 0.0, name
            add_sums(sums, metrics)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in (self.logits, self.value)]
        return torch.cat([part.flatten() for part in parts]), loss, sums
