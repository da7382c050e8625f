"""The plain loop that figures are told beside computes what the oracles do: else their ratio would say nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from areal_conformance.oracles.plain import PlainGenerator, PlainTrainer
from areal_conformance.oracles.train import Oracle
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model


def test_a_plain_loop_scores_as_the_oracle_does(tmp_path: Path) -> None:
    """Each token of sequences of several lengths, in the batch's own order."""
    model, batch = make_tiny_model(tmp_path / "model"), make_batch([(2, 9), (1, 4), (3, 14)])
    wanted = scored(model, batch)

    got = PlainTrainer(model, dtype="float32", device="cpu", lr=1e-3).logprobs(batch)
    scored_there = batch.tokens["loss_mask"] & (batch.positions > 0)
    assert float((got - wanted)[scored_there].abs().max()) < 1e-5


def test_a_plain_forward_scores_an_output_as_the_oracle_does(tmp_path: Path) -> None:
    """In float64, but for what transformers computes in float32 all the same: softmax of eager attention, norms."""
    model, batch = make_tiny_model(tmp_path / "model"), make_batch([(5, 12)])
    ids = batch.tokens["input_ids"].tolist()
    got = PlainGenerator(model, dtype="float64", device="cpu").logprobs(ids[:5], ids[5:])

    assert got.dtype is torch.float64
    assert float((got - scored(model, batch)[5:]).abs().max()) < 2e-6


def scored(model: Path, batch: Batch) -> torch.Tensor:
    """Return the oracle's log-probs of a batch."""
    with torch.no_grad():
        return Oracle(model).columns(batch)[Output.LOGPROBS]
