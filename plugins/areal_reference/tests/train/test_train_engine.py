"""The reference trainer: what a step computes, and what every call leaves behind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_core.contract.batch import Batch
from areal_core.contract.errors import (
    BatchError,
    CapabilityError,
    LayoutError,
    ModelError,
    TrainError,
)
from areal_core.contract.train import (
    Head,
    OptimizerSpec,
    Output,
    RankContext,
    TrainEngine,
    TrainSpec,
)
from areal_reference.train.config import ReferenceTrainConfig
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.profile import profile_variables
from areal_torch.testing.batches import assert_same_batch, make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.objectives import PolicyGradient, ValueRegression
from areal_torch.trainer import running
from areal_torch.trainer import started as started_trainer

from .trainers import RANK, data, gradient, sent, started


def test_it_is_a_train_engine(model: Path) -> None:
    """It has the contract's members, and tells what it started."""
    engine = ReferenceTrainEngine()
    info = engine.start(TrainSpec(role="actor", model_path=str(model)), RANK)

    assert isinstance(engine, TrainEngine)
    assert (info.engine, info.device, info.data_size, info.context_length) == ("reference", "cpu", 1, 256)
    assert info.num_parameters == sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(order=st.permutations(range(8)), max_tokens=st.integers(14, 70), recompute=st.booleans())
def test_gradient_does_not_depend_on_order_or_microbatches(
    model: Path, order: list[int], max_tokens: int, recompute: bool
) -> None:
    """Law 6: any order, any budget, activations kept or not: loss and gradient within 1e-5."""
    optimizer = OptimizerSpec(lr=1e-2, betas=(0.0, 0.9), max_grad_norm=0.0)
    whole, expected = gradient(started(model, optimizer=optimizer), data())
    config = ReferenceTrainConfig(activation_checkpointing=recompute)

    report, actual = gradient(
        started(model, config, optimizer=optimizer, max_tokens_per_microbatch=max_tokens), data(order)
    )

    assert report.loss == pytest.approx(whole.loss, rel=1e-5)
    assert report.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert report.metrics["entropy"].value == pytest.approx(whole.metrics["entropy"].value, rel=1e-5)
    assert report.metrics["entropy"].weight == 40.0
    assert report.num_tokens == 64
    assert float((actual - expected).norm() / expected.norm()) < 1e-5
    if max_tokens < 64:
        assert report.num_microbatches > 1


def test_a_microbatch_without_trained_tokens_adds_nothing(model: Path) -> None:
    """Sequences that are off the mask everywhere change neither loss nor gradient."""
    batch = data()
    masked = batch.with_tokens(loss_mask=batch.tokens["loss_mask"] & (batch.sequence_ids < 4))
    optimizer = OptimizerSpec(lr=1e-2, betas=(0.0, 0.9))

    alone, expected = gradient(started(model, optimizer=optimizer), data([0, 1, 2, 3]))
    report, actual = gradient(started(model, optimizer=optimizer, max_tokens_per_microbatch=14), masked)

    assert report.loss == pytest.approx(alone.loss, rel=1e-5)
    assert float((actual - expected).norm() / expected.norm()) < 1e-5


def test_a_loss_that_does_not_depend_on_the_model_is_no_error(model: Path) -> None:
    """An objective may return a plain 0 for a micro-batch it has nothing to say about."""

    class Partly(PolicyGradient):
        def loss(self, columns: Any, batch: Batch, normalizer: torch.Tensor) -> Any:
            if int(batch.lengths.max()) < 10:
                return torch.zeros(()), {}
            return super().loss(columns, batch, normalizer)

    report = started(model, max_tokens_per_microbatch=14).train_step(data(), Partly())

    assert report.stepped
    assert report.grad_norm > 0.0


@pytest.mark.parametrize("max_tokens", [14, 30, 1000])
def test_forward_returns_columns_in_the_batch_order(model: Path, max_tokens: int) -> None:
    """Cut and sorted inside, restored outside; the batch's own columns are untouched."""
    batch = data()
    engine = started(model, max_tokens_per_microbatch=max_tokens, temperature=0.5)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    scored = engine.forward(batch, frozenset({Output.LOGPROBS, Output.ENTROPY}))

    for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        ids, mask = batch.tokens["input_ids"][start:end], batch.tokens["loss_mask"][start:end]
        with torch.no_grad():
            log_p = (plain(input_ids=ids[None]).logits[0, :-1] / 0.5).log_softmax(-1)
        expected = torch.cat([torch.zeros(1), log_p.gather(1, ids[1:, None])[:, 0]])
        torch.testing.assert_close(scored.tokens["logprobs"][start:end], expected * mask, rtol=1e-5, atol=1e-5)
        entropy = -(log_p.exp() * log_p).sum(-1) * mask[1:]
        torch.testing.assert_close(scored.tokens["entropy"][start + 1 : end], entropy, rtol=1e-5, atol=1e-5)
    kept = {name: scored.tokens[name] for name in batch.tokens.keys() if name != "logprobs"}  # noqa: SIM118
    assert_same_batch(
        Batch.of({name: batch.tokens[name] for name in kept}, {}, batch.lengths), Batch.of(kept, {}, scored.lengths)
    )
    assert not scored.tokens["logprobs"].requires_grad


def test_the_version_is_the_cores_to_set(model: Path) -> None:
    """A step does not change it; the state carries it."""
    engine = started(model)
    engine.version = 4
    engine.train_step(data(), PolicyGradient())

    assert engine.version == 4


def test_a_value_head_learns_and_reloads(model: Path, tmp_path: Path) -> None:
    """It starts at zero, is aligned to the token it is read before, and is saved as transformers' own class."""
    engine = started(model, head=Head.VALUE, max_tokens_per_microbatch=30)
    before = engine.forward(data(), frozenset({Output.VALUES})).tokens["values"]
    losses = [engine.train_step(data(), ValueRegression()).loss for _ in range(12)]
    values = engine.forward(data(), frozenset({Output.VALUES})).tokens["values"]
    engine.save_weights(tmp_path / "critic")

    assert not before.any()
    assert losses[-1] < 0.5 * losses[0]
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
    first = data([2])
    with torch.no_grad():
        expected = loaded(input_ids=first.tokens["input_ids"][None]).logits[0, :-1, 0]
    index = data().sequence_ids == 2
    torch.testing.assert_close(values[index][1:], expected, rtol=1e-4, atol=1e-5)
    assert float(values[index][0]) == 0.0
    again = started(tmp_path / "critic", head=Head.VALUE)
    torch.testing.assert_close(again.forward(data(), frozenset({Output.VALUES})).tokens["values"], values)


def test_bfloat16_computes_in_bfloat16_on_float32_masters(model: Path) -> None:
    """Log-probs differ from float32's by little; a small step is not rounded away."""
    exact, half = started(model), started(model, dtype="bfloat16", optimizer=OptimizerSpec(lr=1e-6))
    outputs = frozenset({Output.LOGPROBS})
    seen: list[torch.dtype] = []
    layer = running(half.trainer).model.packed.hf.model.layers[0].self_attn.q_proj  # type: ignore[attr-defined]
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    left, right = (engine.forward(data(), outputs).tokens["logprobs"] for engine in (exact, half))

    before = running(half.trainer).state.parameters["model.norm.weight"].detach().clone()
    half.train_step(data(), PolicyGradient())
    after = running(half.trainer).state.parameters["model.norm.weight"].detach()

    assert set(seen) == {torch.bfloat16}
    assert not torch.equal(left, right)
    torch.testing.assert_close(left, right, rtol=0.05, atol=0.1)
    assert after.dtype is torch.float32
    assert bool((before != after).any())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.with_tokens(loss_mask=torch.zeros_like(b.tokens["loss_mask"])), r"divided by 0\.0"),
        (lambda b: b.select([]), r"divided by 0\.0"),
        (lambda b: make_batch([(2, 3)]), "lacks the token columns advantages"),
        (lambda b: make_batch([(2, 40)]).with_tokens(advantages=torch.zeros(42)), "the limit is 30"),
    ],
)
def test_unfit_batches_are_refused(model: Path, change: Callable[[Batch], Batch], says: str) -> None:
    """And the engine goes on."""
    engine = started(model, max_tokens_per_microbatch=30)

    with pytest.raises(BatchError, match=says):
        engine.train_step(change(data()), PolicyGradient())
    assert engine.train_step(data(), PolicyGradient()).stepped


def test_an_empty_batch_is_scored_as_nothing(model: Path) -> None:
    """A shard may be empty."""
    scored = started(model).forward(data([]), frozenset({Output.LOGPROBS}))

    assert scored.num_tokens == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_reported(model: Path) -> None:
    """The weights are the same bits, the learning rate has not moved on, the next step is a first step."""
    engine = started(model, optimizer=OptimizerSpec(lr=1e-2, warmup_steps=10))
    before = sent(engine).tensors
    batch = data()

    bad = engine.train_step(batch.with_tokens(advantages=batch.tokens["advantages"] * float("nan")), PolicyGradient())
    after = sent(engine).tensors
    good = engine.train_step(batch, PolicyGradient())

    assert not bad.stepped
    assert bad.grad_norm != bad.grad_norm
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (good.stepped, good.lr) == (True, pytest.approx(1e-3))


def test_what_it_cannot_do_is_refused(model: Path, tmp_path: Path) -> None:
    """Several ranks, other parallelism, the wrong head, a frozen role, float16, no model, a closed engine."""
    two = RankContext(rank=0, world_size=2, local_rank=0, device="cpu", init_method="unused")
    spec = TrainSpec(role="actor", model_path=str(model))

    with pytest.raises(LayoutError, match="no data parallelism"):
        ReferenceTrainEngine().start(spec, two)
    with pytest.raises(LayoutError, match="no tensor parallelism"):
        started(model, layout={"d": 1, "t": 2})
    with pytest.raises(CapabilityError, match="cannot give values"):
        started(model).train_step(data(), ValueRegression())
    with pytest.raises(TrainError, match="frozen"):
        started(model, optimizer=None).train_step(data(), PolicyGradient())
    with pytest.raises(CapabilityError, match="float16"):
        started(model, dtype="float16")
    with pytest.raises(ModelError):
        started(tmp_path)
    engine = started(model)
    engine.close()
    engine.close()
    with pytest.raises(TrainError, match="closed"):
        engine.forward(data(), frozenset({Output.LOGPROBS}))


def test_an_offloaded_engine_says_so(model: Path) -> None:
    """Every call that needs weights is refused with what to do; `close` works, and leaves no file open."""
    engine = started(model)
    engine.offload()

    for call in (
        lambda: engine.train_step(data(), PolicyGradient()),
        lambda: engine.forward(data(), frozenset({Output.LOGPROBS})),
        lambda: engine.send_weights(MemorySink(), 1),
        lambda: engine.save_state(Path("unused")),
    ):
        with pytest.raises(TrainError, match="off the device") as raised:
            call()
        assert "onload" in raised.value.fix
    memory = started_trainer(engine.trainer).memory
    engine.close()

    assert memory is not None
    assert not memory.away
    with pytest.raises(TrainError, match="closed"):
        engine.onload()


def test_a_mixture_of_experts_learns_on_recorded_routes_with_recomputation(tmp_path: Path) -> None:
    """Activations kept or computed again: the same gradient, which is that of the recorded experts."""
    moe = make_tiny_model(tmp_path / "moe", kind="qwen3_moe", hidden=32)
    optimizer = OptimizerSpec(lr=1e-2, betas=(0.0, 0.9), max_grad_norm=0.0)
    noise = torch.rand(data().num_tokens, 2, 4, generator=torch.Generator().manual_seed(2))
    routed = data().with_tokens(routed_experts=noise.argsort(-1)[..., :2].to(torch.int32))
    kept = ReferenceTrainConfig(activation_checkpointing=False)
    again = ReferenceTrainConfig(activation_checkpointing=True)

    _, expected = gradient(started(moe, kept, optimizer=optimizer), routed)
    _, actual = gradient(started(moe, again, optimizer=optimizer, max_tokens_per_microbatch=20), routed)
    _, free = gradient(started(moe, kept, optimizer=optimizer), data())

    assert float((actual - expected).norm() / expected.norm()) < 1e-5
    assert float((free - expected).norm() / expected.norm()) > 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reporting_the_entropy_changes_no_trained_bit(model: Path, dtype: str) -> None:
    """It is a metric: loss, gradient norm and weights are those of a step that does not compute it."""
    batch = data().with_tokens(proximal_logprobs=data().tokens["logprobs"])

    found = []
    for reported in (True, False):
        engine = started(model, dtype=dtype)
        reports = [engine.train_step(batch, PPOObjective(PPOConfig(report_entropy=reported))) for _ in range(2)]
        found.append(([(report.loss, report.grad_norm) for report in reports], sent(engine).tensors))
        assert ("entropy" in reports[0].metrics) is reported

    (theirs, weights), (ours, others) = found
    assert theirs == ours
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


def test_a_traced_step_gives_the_same_bits(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward pass and train step are in one file, the weights it sends in another; no other step is traced."""
    plain = started(model)
    for name, value in profile_variables({"steps": [2]}, 3, tmp_path, "actor").items():
        monkeypatch.setenv(name, value)
    traced = started(model)

    norms: list[list[float]] = []
    for engine in (plain, traced):
        norms.append([])
        for step in (1, 2, 3):
            engine.forward(data(), frozenset({Output.LOGPROBS}))
            norms[-1].append(engine.train_step(data(), PolicyGradient()).grad_norm)
            engine.version = step
            engine.send_weights(MemorySink(), step)
        engine.close()

    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert norms[0] == norms[1]
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        "profile/step-2/actor-rank0-weights.json.gz",
        "profile/step-2/actor-rank0.json.gz",
    ]
    with gzip.open(files[1], "rt") as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    assert {"areal: forward", "areal: train_step", "aten::mm"} <= names
