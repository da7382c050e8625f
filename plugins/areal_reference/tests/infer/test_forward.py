"""The short forward computes what the model's own does, and is used only where it does."""

from __future__ import annotations

import pytest
import torch

from areal_core.contract.inference import InferenceSpec
from areal_reference.infer import forward
from areal_reference.infer.cache import CacheSlab
from areal_reference.infer.forward import OwnForward
from areal_reference.infer.loading import load_model
from areal_reference.infer.runner import ModelRunner


def runner_of(folder, dtype="float32"):
    """Return a runner and the model it runs."""
    loaded = load_model(InferenceSpec(model_path=str(folder), dtype=dtype))
    shape = {"max_rows": 4, "max_length": loaded.context_length, "dtype": loaded.dtype, "device": loaded.device}
    return ModelRunner(loaded, CacheSlab(loaded.layers, **shape)), loaded.model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_the_short_forward_scores_as_the_model_does(kind, dtype, model_folder):
    """Every log-prob of a sequence longer than the first table of positions agrees to rounding."""
    ids = [3 + n * 7 % 50 for n in range(2 * forward.FIRST_POSITIONS + 1)]
    runner, model = runner_of(model_folder(kind), dtype)
    assert runner.is_plain
    short = runner.scores(ids, 1.0)
    runner._compute = OwnForward(model)

    torch.testing.assert_close(short, runner.scores(ids, 1.0), rtol=0, atol=1e-5 if dtype == "float32" else 0.1)


def test_a_forward_that_computes_something_else_is_not_used(model_folder, monkeypatch):
    """Heads that are not turned to their places show at the start, and the model's own forward serves."""
    monkeypatch.setattr(forward, "_turned", lambda heads, _cos, _sin: heads)

    assert not runner_of(model_folder())[0].is_plain


def test_layers_of_another_make_are_left_to_the_model(model_folder):
    """An architecture with experts is computed by its own forward."""
    assert not runner_of(model_folder("qwen3_moe"))[0].is_plain


def test_a_hook_on_a_layer_counts(model_folder):
    """What is put on a module of the model shows in the next forward, as adapters do."""
    runner, model = runner_of(model_folder())
    before = runner.scores([3, 4, 5], 1.0)
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda _module, _inputs, output: 2 * output)

    assert runner.scores([3, 4, 5], 1.0) != before
