"""Recorded routes: alignment, the routers' own weights, recomputed activations, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.train import ROUTED_EXPERTS, Head, Output
from areal_torch import hf
from areal_torch.attention import Packing
from areal_torch.experts import Experts, check_routes, replay_routing, routes_of
from areal_torch.model import PackedModel
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model

LIKE = Experts(num_layers=2, num_experts=4, per_token=2)
LOGPROBS = frozenset({Output.LOGPROBS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("moe") / "model", kind="qwen3_moe", hidden=32)


def drawn(num_tokens: int, seed: int = 0) -> torch.Tensor:
    noise = torch.rand(num_tokens, 2, 4, generator=torch.Generator().manual_seed(seed))
    return noise.argsort(-1)[..., :2].to(torch.int32)


def routed(batch: Batch, routes: torch.Tensor) -> Batch:
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


def packed(folder: Path, *, recompute: bool = False) -> PackedModel:
    model = hf.load_model(str(folder), hf.load_config(str(folder), Head.CAUSAL_LM), Head.CAUSAL_LM)
    assert replay_routing(model.train()) == LIKE
    if recompute:
        hf.recompute_activations(model)
    return PackedModel(model, Head.CAUSAL_LM)


def test_a_row_is_of_the_pass_over_the_token_before() -> None:
    """Row t becomes the route of token t - 1; last tokens, whose pass nobody drew from, are free."""
    batch = make_batch([(1, 2), (2, 1)])
    routes = drawn(6)
    batch = routed(batch, routes)

    passes = routes_of(batch, Packing.of(batch))["routes"]

    free = torch.full((1, 2, 2), -1)
    assert torch.equal(passes, torch.cat([routes[1:3], free, routes[4:6], free]).long())
    assert routes_of(make_batch([(1, 2)]), Packing.of(make_batch([(1, 2)]))) == {}


def test_recorded_experts_are_used_and_weighed_by_the_router(folder: Path) -> None:
    """What each router returns are the recorded experts with its own probabilities, normalised, and a gradient."""
    model = packed(folder)
    seen: list[Any] = []
    gates = [layer.mlp.gate for layer in model.hf.model.layers]
    for gate in gates:
        gate.register_forward_hook(lambda module, inputs, output: seen.append(output))
    batch = make_batch([(1, 4), (2, 3)])
    routes = drawn(batch.num_tokens)
    routes[3] = -1

    model(routed(batch, routes), LOGPROBS)

    passes = routes_of(routed(batch, routes), Packing.of(batch))["routes"]
    for place, (logits, weights, chosen) in enumerate(seen):
        recorded = passes[:, place, 0] >= 0
        assert torch.equal(chosen[recorded], passes[recorded, place])
        assert torch.equal(chosen[~recorded], logits.topk(2).indices[~recorded])
        expected = logits.softmax(-1).gather(1, chosen)
        torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True))
        assert weights.requires_grad


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputed_activations_take_the_routes_of_their_own_pass(folder: Path, recompute: bool) -> None:
    """Two passes forward, then both backward, the first one last: each is recomputed on its own routes."""
    batches = [routed(make_batch([(1, 6), (2, 3)]), drawn(12, seed)) for seed in (1, 2)]
    apart = packed(folder)
    for batch in batches:
        torch.autograd.backward(apart(batch, LOGPROBS)[Output.LOGPROBS].sum())

    together = packed(folder, recompute=recompute)
    losses = [together(batch, LOGPROBS)[Output.LOGPROBS].sum() for batch in batches]
    for loss in reversed(losses):
        torch.autograd.backward(loss)

    for (name, wanted), (_, got) in zip(apart.named_parameters(), together.named_parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_routes_do_not_outlive_their_pass(folder: Path) -> None:
    """A batch without routes, after one with them, is routed freely."""
    model, batch = packed(folder), make_batch([(1, 6), (2, 3)])
    with torch.no_grad():
        before = model(batch, LOGPROBS)[Output.LOGPROBS]
        forced = model(routed(batch, drawn(12)), LOGPROBS)[Output.LOGPROBS]
        after = model(batch, LOGPROBS)[Output.LOGPROBS]

    assert torch.equal(before, after)
    assert not torch.equal(before, forced)


def test_right_routes_pass_in_any_whole_dtype() -> None:
    """int32 as the contract has it, int64 and int16 as well, also for no token at all."""
    batch = make_batch([(1, 3)])
    for dtype in (torch.int32, torch.int64, torch.int16):
        check_routes(routed(batch, drawn(4).to(dtype)), LIKE)
    check_routes(routed(batch, torch.full((4, 2, 2), -1)), LIKE)
    check_routes(batch, Experts())
    check_routes(routed(batch.select([]), drawn(0)), LIKE)


@pytest.mark.parametrize(
    ("place", "row", "words"),
    [
        ((2, 1), [0, 4], "an expert that does not exist"),
        ((2, 1), [-2, 1], "an expert that does not exist"),
        ((0, 0), [3, 3], "one expert twice"),
        ((3, 1), [-1, 2], "-1 in part"),
    ],
)
def test_the_error_names_the_row(place: tuple[int, int], row: list[int], words: str) -> None:
    """What is wrong, where, and what stands there."""
    routes = drawn(4)
    routes[place] = torch.tensor(row, dtype=torch.int32)

    with pytest.raises(BatchError, match=rf"{words}: token {place[0]}, layer {place[1]}: \[{row[0]}, {row[1]}\]"):
        check_routes(routed(make_batch([(1, 3)]), routes), LIKE)


@pytest.mark.parametrize("routes", [drawn(4)[:, :1], drawn(4)[..., :1], drawn(4).float(), drawn(4) > 1])
def test_another_shape_or_dtype_is_refused(routes: torch.Tensor) -> None:
    """Layers, experts per token, whole numbers."""
    with pytest.raises(BatchError, match="routed_experts is torch"):
        check_routes(routed(make_batch([(1, 3)]), routes), LIKE)


def test_a_model_without_experts_refuses_routes(tmp_path: Path) -> None:
    """They were recorded by another model."""
    path = make_tiny_model(tmp_path / "dense", hidden=32)
    experts = replay_routing(hf.empty_model(hf.load_config(str(path), Head.CAUSAL_LM), Head.CAUSAL_LM))

    assert experts == Experts()
    with pytest.raises(BatchError, match="has no experts"):
        check_routes(routed(make_batch([(1, 3)]), drawn(4)), experts)


def test_a_router_that_cannot_be_told_is_named() -> None:
    """Routers that weigh experts otherwise are refused when routes come, and route freely until then."""
    from transformers import AutoModelForCausalLM, GptOssConfig

    config = GptOssConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"],
    )  # fmt: skip
    with torch.device("meta"):
        experts = replay_routing(AutoModelForCausalLM.from_config(config))

    check_routes(make_batch([(1, 3)]), experts)
    with pytest.raises(CapabilityError, match="GptOssTopKRouter"):
        check_routes(routed(make_batch([(1, 3)]), drawn(4)), experts)


@pytest.mark.parametrize("kind", ["qwen2_moe", "olmoe", "flex_olmo", "mixtral"])
def test_the_routers_own_choice_given_back_changes_nothing(kind: str) -> None:
    """For every family whose routing is replayed: its own routes as recorded ones give the same output to the bit."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 32, "pad_token_id": 0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2}
    counts = {"num_local_experts": 4} if kind == "mixtral" else {"num_experts": 4, "decoder_sparse_step": 1}
    config = AutoConfig.for_model(kind, **sizes, **heads, **counts, moe_intermediate_size=16)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert replay_routing(model) == LIKE
    chosen: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, inputs, output: chosen.append(output[2]))
    ids = torch.arange(2, 12)[None]

    with torch.no_grad():
        free = model(input_ids=ids).logits
        own = torch.stack(chosen[:2], dim=1)
        told = model(input_ids=ids, routes=own.flip(0)).logits
        again = model(input_ids=ids, routes=own).logits

    assert torch.equal(free, again)
    assert not torch.equal(free, told)
