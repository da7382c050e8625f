"""Matrix products in 8-bit floats, emulated where the device has none: close to full precision, and not equal."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from areal_archon import float8
from areal_archon.config import ArchonConfig
from areal_archon.engine import ArchonEngine
from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError, LayoutError
from areal_core.contract.train import Head, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.plugins.install import pip_install
from areal_torch.shape import ModelShape
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.objectives import PolicyGradient
from areal_torch.testing.ranks import run_ranks

pytest.importorskip("torchao")

RECIPES = ("tensorwise", "rowwise")
MEAN_GAP = 0.25
"""Nats between the log-probs of a tiny model, on average: e4m3 rounds by up to 1/16, and a row here has 64 numbers. In
bfloat16 processors add up in orders of their own: by rows it is just above 0.2 on one and below it on another."""
LEAST_COSINE = 0.85
"""Between the gradients of a parameter."""
SHAPE = ModelShape(
    family="qwen3",
    head=Head.CAUSAL_LM,
    vocabulary=64,
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    norm_eps=1e-6,
    tied=True,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("float8") / "model")


@contextmanager
def started(model: Path, folder: Path, *, dtype: str = "float32", **options: Any) -> Iterator[ArchonEngine]:
    """Any: options of the engine."""
    engine = ArchonEngine(ArchonConfig(**options))
    spec = TrainSpec(role="actor", model_path=str(model), dtype=dtype, optimizer=OptimizerSpec(lr=1e-3))
    store = f"file://{folder}/store-{len(list(folder.iterdir()))}"
    try:
        engine.start(spec, RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=store))
        yield engine
    finally:
        engine.close()


def batch_of_eight() -> Batch:
    """Return eight sequences with advantages."""
    batch = make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)])
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(7))
    return batch.with_tokens(advantages=noise)


def trained(model: Path, folder: Path, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the log-probs of a batch and the gradients of a step on it. Any: options of the engine."""
    batch = batch_of_eight()
    with started(model, folder, **options) as engine:
        scores = engine.forward(batch, frozenset({Output.LOGPROBS})).tokens["logprobs"]
        engine.train_step(batch, PolicyGradient())
        assert engine.trainer is not None
        assert engine.trainer.optimizer is not None
        return scores, dict(engine.trainer.optimizer.moments["exp_avg"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_scores_and_gradients_are_near_those_of_full_precision(
    model: Path, tmp_path: Path, recipe: str, dtype: str
) -> None:
    """Near, and not the same: something was rounded. Nothing is infinite."""
    scores, gradients = trained(model, tmp_path, dtype=dtype)
    rounded, noisy = trained(model, tmp_path, dtype=dtype, fp8=recipe, fp8_emulate=True)
    on_mask = batch_of_eight().tokens["loss_mask"]

    gap = float((rounded - scores).abs()[on_mask].mean())
    assert 0.01 < gap < MEAN_GAP
    for name, gradient in noisy.items():
        assert gradient.isfinite().all(), name
        cosine = float(torch.cosine_similarity(gradient.flatten(), gradients[name].flatten(), 0))
        assert cosine > LEAST_COSINE, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"activation_checkpointing": "full", "wrap": "layer"},
        {"activation_checkpointing": "selective", "wrap": "layer"},
        {"compile": True, "compile_backend": "aot_eager"},
    ],
    ids=["full", "selective", "compiled"],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_how_layers_are_run_changes_no_bit(model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Computed again, partly kept or compiled, 8-bit layers give what they give. Any: options of the engine."""
    scores, gradients = trained(model, tmp_path, fp8="rowwise", fp8_emulate=True)
    again, others = trained(model, tmp_path, fp8="rowwise", fp8_emulate=True, **options)

    assert torch.equal(again, scores)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_layer_multiplies_what_e4m3_leaves_of_its_operands(recipe: str) -> None:
    """Scaled to the largest number the format has, rounded, multiplied, scaled back: computed here without torchao."""
    torch.manual_seed(3)
    blocks = nn.ModuleDict({"0": nn.Sequential(nn.Linear(32, 48, bias=False))})
    x, weight = torch.randn(20, 32), blocks["0"][0].weight.detach().clone()

    float8.multiply_in_8_bits(blocks, ArchonConfig(fp8=recipe, fp8_emulate=True))
    got = blocks["0"](x)

    wanted = _rounded(x, recipe) @ _rounded(weight, recipe).T
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got, x @ weight.T, rtol=1e-3, atol=1e-3)


def _rounded(x: Tensor, recipe: str) -> Tensor:
    largest = x.abs().amax(1, keepdim=True) if recipe == "rowwise" else x.abs().amax()
    scale = torch.finfo(torch.float8_e4m3fn).max / largest
    if recipe == "rowwise":
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


def test_only_the_matrices_of_layers_are_multiplied_so(model: Path, tmp_path: Path) -> None:
    """Seven of each layer; embedding, head and norms compute as before, under their own names."""
    from torchao.float8.float8_linear import Float8Linear

    with started(model, tmp_path, fp8="tensorwise", fp8_emulate=True) as engine:
        assert engine.built is not None
        (stage,) = engine.built.stages
        found = {name for name, module in stage.named_modules() if isinstance(module, Float8Linear)}
        sent = set(engine.built.held)

    parts = ("attention.query", "attention.key", "attention.value", "attention.out")
    parts += ("feed_forward.gate", "feed_forward.up", "feed_forward.down")
    assert found == {f"blocks.{layer}.{part}" for layer in (0, 1) for part in parts}
    assert {f"{name}.weight" for name in found} <= sent


def test_a_device_without_them_is_refused(model: Path, tmp_path: Path) -> None:
    """Before the model is read, with the way to try it all the same."""
    with (
        pytest.raises(CapabilityError, match="no 8-bit matrix products on cpu") as caught,
        started(tmp_path / "no model", tmp_path, fp8="tensorwise"),
    ):
        pass
    assert "fp8_emulate" in caught.value.fix
    assert "8.9" in caught.value.why


def test_a_missing_torchao_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchao" else found(name))
    with (
        pytest.raises(CapabilityError, match="torchao") as caught,
        started(tmp_path / "no model", tmp_path, fp8="rowwise", fp8_emulate=True),
    ):
        pass
    assert pip_install("areal-archon[fp8]") in caught.value.fix


@pytest.mark.parametrize(
    ("changes", "degree", "says"),
    [
        ({"hidden": 72}, 1, "the hidden size, 72"),
        ({"kv_heads": 1, "head_dim": 8}, 1, "the columns of keys and values, 8"),
        ({"intermediate": 176}, 2, "the columns of a feed-forward layer, 88"),
    ],
)
def test_sides_that_are_no_multiples_of_16_are_refused_by_name(changes: dict[str, int], degree: int, says: str) -> None:
    """Of a whole matrix, or of the part of it that a tensor rank has."""
    from attrs import evolve

    with pytest.raises(LayoutError, match=says):
        float8.check_fits(ArchonConfig(fp8="rowwise"), evolve(SHAPE, **changes), {"t": degree})
    float8.check_fits(ArchonConfig(), evolve(SHAPE, **changes), {"t": degree})


@pytest.mark.parametrize("changes", [{"out_bias": True}, {"feed_forward_bias": True}, {"mixtures": frozenset({1})}])
def test_models_whose_products_it_does_not_make_are_refused(changes: dict[str, Any]) -> None:
    """Silently leaving some in full precision would be another computation than asked for. Any: fields of a shape."""
    from attrs import evolve

    with pytest.raises(CapabilityError, match="fp8 does not support a qwen3"):
        float8.check_fits(ArchonConfig(fp8="tensorwise"), evolve(SHAPE, **changes), {})


@pytest.mark.slow
def test_two_ranks_are_as_near_to_full_precision_as_one(tmp_path: Path) -> None:
    """Over data, tensor, context and pipeline ranks, each of which scales what it has."""
    make_tiny_model(tmp_path / "model", layers=4)
    run_ranks(Path(__file__).with_name("float8_ranks.py"), tmp_path, 2, limit_s=800)
    ranks = [json.loads((tmp_path / f"float8-{rank}.json").read_text()) for rank in range(2)]

    for case in ranks[0]:
        for rank in ranks:
            scores, rounded = (torch.tensor(column) for column in rank[case]["scores"])
            gap = float((rounded - scores).abs()[scores != 0].mean())
            assert 0.01 < gap < 2 * MEAN_GAP, case
        names = {name for rank in ranks for name in rank[case]["products"]}
        for name in names:
            parts = torch.tensor([rank[case]["products"][name] for rank in ranks if name in rank[case]["products"]])
            dot, own, other = parts.sum(0).tolist()
            assert dot > (LEAST_COSINE - 0.05) * (own * other) ** 0.5 > 0, f"{case}: {name}"
