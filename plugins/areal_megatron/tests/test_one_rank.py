"""The Megatron engine on one rank, against a bare PyTorch loop over unpacked sequences; more ranks: test_ranks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_core.contract.train import OptimizerSpec, Output, RankContext, TrainSpec
from areal_megatron.engine import MegatronEngine
from areal_torch.hf import folder_tensors
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.objectives import PolicyGradient


def batch() -> Any:
    made = make_batch([(2, 3), (1, 5), (4, 9), (2, 12), (1, 1)])
    return made.with_tokens(advantages=torch.randn(made.num_tokens, generator=torch.Generator().manual_seed(3)))


def plain(path: Path) -> tuple[float, Tensor, dict[str, Tensor]]:
    """Return loss, log-probs and gradients of one step, one sequence at a time."""
    made = batch()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    loss, logprobs = torch.zeros(()), torch.zeros(made.num_tokens)
    for start, end in zip(made.cu_seqlens[:-1].tolist(), made.cu_seqlens[1:].tolist(), strict=True):
        ids, mask = made.tokens["input_ids"][start:end], made.tokens["loss_mask"][start:end][1:]
        log_p = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        chosen = log_p.gather(1, ids[1:, None])[:, 0]
        logprobs[start + 1 : end] = chosen.detach() * mask
        gain = made.tokens["advantages"][start:end][1:] * chosen + 0.01 * entropy
        loss = loss - gain[mask].sum() / made.tokens["loss_mask"].sum()
    loss.backward()
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        gradients |= folder_tensors(model, name, parameter.grad)
    return float(loss.detach()), logprobs, gradients


@pytest.mark.parametrize(("kind", "padding"), [("qwen3", 0), ("qwen3", 13), ("qwen3_moe", 13)])
def test_a_step_is_that_of_a_plain_loop(kind: str, padding: int, tmp_path: Path) -> None:
    """Log-probs, loss, norm, and the gradient of every tensor of the folder; id 13 is given and generated, 0 is not."""
    path = make_tiny_model(tmp_path / kind, kind=kind, vocab_size=65, tied=kind == "qwen3")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pad_token_id": padding}))
    loss, logprobs, gradients = plain(path)
    engine = MegatronEngine()
    rank = RankContext(
        rank=0, world_size=1, local_rank=0, device="cpu", init_method=f"file://{tmp_path}/store", timeout_s=60
    )
    spec = TrainSpec(role="actor", model_path=str(path), optimizer=OptimizerSpec(lr=1e-2, max_grad_norm=0.0))
    try:
        info = engine.start(spec, rank)
        scored = engine.forward(batch(), frozenset({Output.LOGPROBS}))
        report = engine.train_step(batch(), PolicyGradient())
        moments = engine.trainer.optimizer.moments["exp_avg"]  # type: ignore[union-attr]
        parts = [each.split(moments[each.name] / 0.1) for each in engine.built.weights.parameters]  # type: ignore[union-attr]
    finally:
        engine.close()
    found = {name: tensor for part in parts for name, tensor in part.items()}

    assert info.details["layers"] == "local"
    torch.testing.assert_close(scored.tokens["logprobs"], logprobs, rtol=1e-4, atol=1e-5)
    assert report.loss == pytest.approx(loss, rel=1e-4)
    total = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert report.grad_norm == pytest.approx(float(total), rel=1e-4)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = float(gradient.abs().max())
        assert float((found[name] - gradient).abs().max()) <= 1e-4 * scale, name
