"""Every train engine that is installed makes the same optimizer step: one algorithm, however the model is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_core.plugins.registry import default_registry
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model

KINDS = ("qwen3", "qwen2", "llama", "qwen3_moe")
OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=1e-3, max_grad_norm=1.0)
"""`eps` is large beside the rounding of a gradient: Adam does not divide noise by noise."""
SHAPES = [(3, 9), (1, 4), (7, 2), (4, 12)]
STEPS = 3


def engines() -> list[str]:
    registry = default_registry()
    return [name for name in registry.names("train") if "cpu" in registry.describe("train", name).devices]


def steps_of(name: str, model: Path, folder: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Make some steps with one engine; return loss and gradient norm of each, and the weights it saves."""
    engine: Any = default_registry().build("train", name)  # Any: the registry builds every role
    spec = TrainSpec(role="actor", model_path=str(model), optimizer=OPTIMIZER, max_tokens_per_microbatch=24)
    store = f"file://{folder}/store-{name}"
    engine.start(spec, RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=store))
    try:
        objective = SFTObjective(SFTConfig())
        reports = [engine.train_step(make_batch(SHAPES, seed=number), objective) for number in range(STEPS)]
        engine.save_weights(folder / name)
    finally:
        engine.close()
    weights = {key: value for file in (folder / name).glob("*.safetensors") for key, value in load_file(file).items()}
    return [(report.loss, report.grad_norm) for report in reports], weights


@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_makes_the_same_steps(kind: str, tmp_path: Path) -> None:
    """Losses, gradient norms, and every weight after three clipped AdamW steps, against the reference's."""
    make_tiny_model(tmp_path / "model", kind=kind)
    expected, weights = steps_of("reference", tmp_path / "model", tmp_path)
    before = load_file(tmp_path / "model" / "model.safetensors")

    for name in engines():
        reports, found = steps_of(name, tmp_path / "model", tmp_path)

        assert reports == [pytest.approx(report, rel=1e-4) for report in expected], name
        assert found.keys() == weights.keys(), name
        gaps = {key: float((found[key] - weight).abs().max()) for key, weight in weights.items()}
        assert max(gaps.values()) < 5e-5, f"{name}: {max(gaps, key=lambda key: gaps[key])}"
    assert any(not torch.equal(before[key], weight) for key, weight in weights.items())
